"""Query 10, log to files: every bid, with the day and the minute that it belongs to.

The published query has a file system's sink make a folder of each minute. Here a folder is an epoch, which appears at
once (``--parameter output=FOLDER``); day and minute are columns.
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
