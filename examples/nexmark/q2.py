"""Query 2, selection: the bids for every 123rd auction."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q2")
    events = pipeline.read("events", parameters.source())
    nexmark.bids(events).where("auction % 123 = 0").select("auction", "price").write("q2", parameters.sink())
    return pipeline
