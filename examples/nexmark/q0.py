"""Query 0, pass through: all bids unchanged. Measures the cost of reading and writing."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q0")
    events = pipeline.read("events", parameters.source())
    nexmark.bids(events).select("auction", "bidder", "price", "dateTime", "extra").write("q0", parameters.sink())
    return pipeline
