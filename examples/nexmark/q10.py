"""Query 10, log to files: all bids with their day and minute.

The sink of the published query creates a folder per minute. Here a folder is an epoch, which becomes visible
atomically (``--parameter output=FOLDER``); day and minute are columns.
"""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q10")
    events = pipeline.read("events", parameters.source())
    day, minute = "date_format(dateTime, 'yyyy-MM-dd') AS dt", "date_format(dateTime, 'HH:mm') AS hm"
    bids = nexmark.bids(events).select("auction", "bidder", "price", "dateTime", "extra", day, minute)
    bids.write("q10", parameters.sink())
    return pipeline
