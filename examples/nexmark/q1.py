"""Query 1, currency conversion: the price of each bid in euros."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q1")
    events = pipeline.read("events", parameters.source())
    euros = "CAST(price * 0.908 AS decimal(23, 3)) AS price"
    converted = nexmark.bids(events).select("auction", "bidder", euros, "dateTime", "extra")
    converted.write("q1", parameters.sink())
    return pipeline
