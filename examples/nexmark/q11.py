"""Query 11, user sessions: number of bids that a bidder places without a pause of 10 seconds."""

from __future__ import annotations

from epochal import Pipeline, session
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q11")
    events = pipeline.read("events", parameters.source())
    bids = nexmark.bids(events).with_watermark("dateTime", parameters.delay)
    sessions = bids.key_by("bidder").window(session("10 seconds")).aggregate("sessions", bid_count="count(*)")
    bounds = ("window_start AS starttime", "window_end AS endtime")
    sessions.select("bidder", "bid_count", *bounds).write("q11", parameters.sink())
    return pipeline
