"""Query 13, bounded side input: every bid joined with its auction's row of a table.

The published query looks up the row in a file for each bid. A pipeline reads a table once in each attempt.
"""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q13")
    events = pipeline.read("events", parameters.source())
    side_input = pipeline.table("side_input", nexmark.side_input())
    enriched = nexmark.bids(events).with_columns(key="auction % 10000").join(side_input, on="key")
    enriched.select("auction", "bidder", "price", "dateTime", "value").write("q13", parameters.sink())
    return pipeline
