"""Query 22, folders of pages: the first three folders of each bid's URL."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q22")
    events = pipeline.read("events", parameters.source())
    folders = [f"split_part(url, '/', {part}) AS dir{number}" for number, part in enumerate((4, 5, 6), 1)]
    bids = nexmark.bids(events).select("auction", "bidder", "price", "channel", *folders)
    bids.write("q22", parameters.sink())
    return pipeline
