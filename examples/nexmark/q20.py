"""Query 20, expand bids: every bid for an auction of category 10, with the auction.

A join of two streams: state stores each auction, and bids that arrived before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline, ValueState
from epochal.connectors import nexmark

BID = "bidder bigint, price bigint, channel string, url string, bid_dateTime timestamp, bid_extra string"
AUCTION = """itemName string, description string, initialBid bigint, reserve bigint, auction_dateTime timestamp,
    expires timestamp, seller bigint, category bigint, auction_extra string"""


class Expanded(KeyedProcess):
    """Outputs the bids of an auction of the category."""

    only = 10
    category = ValueState("category bigint")
    auction = ValueState(AUCTION)
    early = ListState(BID)
    output = f"auction bigint, {BID}, {AUCTION}"
    order_by = "dateTime"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        bids = []
        for row in rows:
            if row.auction is not None:
                self._begin(row.dateTime, **row.auction)
            else:
                bid = row.bid
                bids.append((bid["bidder"], bid["price"], bid["channel"], bid["url"], row.dateTime, bid["extra"]))
        category = self.category.get()
        if category is None:
            self.early.extend(bids)
            return
        if category == self.only:
            auction = self.auction.get()
            for bid in [*self.early, *bids]:
                yield key.id, *bid, *auction
        self.early.clear()

    def _begin(self, at: datetime, *, id: int, extra: str, **columns: Any) -> None:
        self.category.set(columns["category"])
        if columns["category"] == self.only:
            self.auction.set(auction_dateTime=at, auction_extra=extra, **columns)


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q20")
    events = pipeline.read("events", parameters.source())
    rows = events.where("event_type > 0").select(
        "coalesce(auction.id, bid.auction) AS id", "auction", "bid", "dateTime"
    )
    expanded = rows.key_by("id").process(Expanded, name="expanded")
    expanded.write("q20", parameters.sink())
    return pipeline
