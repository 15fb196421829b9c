"""Query 17, auction statistics: number and prices of bids, by auction and day."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q17")
    events = pipeline.read("events", parameters.source())
    bids = nexmark.bids(events).with_columns(day="date_format(dateTime, 'yyyy-MM-dd')")
    auctions = bids.key_by("auction", "day").aggregate(
        "auctions",
        total_bids="count(*)",
        rank1_bids="count_if(price < 10000)",
        rank2_bids="count_if(price BETWEEN 10000 AND 999999)",
        rank3_bids="count_if(price >= 1000000)",
        min_price="min(price)",
        max_price="max(price)",
        avg_price="sum(price) div count(*)",
        sum_price="sum(price)",
    )
    auctions.write("q17", parameters.sink(mode="updates"))
    return pipeline
