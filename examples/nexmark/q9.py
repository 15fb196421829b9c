"""Query 9, winning bids: the highest bid of each auction; of equal bids the earliest.

A bid counts while its auction is open, and can arrive before it. An auction is output again whenever another bid
wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline, ValueState
from epochal.connectors import nexmark

AUCTION = """itemName string, description string, initialBid bigint, reserve bigint, dateTime timestamp,
    expires timestamp, seller bigint, category bigint, extra string"""
BID = "bidder bigint, price bigint, bid_dateTime timestamp, bid_extra string"


class WinningBid(KeyedProcess):
    """Outputs an auction with its winning bid."""

    auction = ValueState(AUCTION)
    early = ListState(BID)
    best = ValueState(BID)
    output = f"id bigint, {AUCTION}, auction bigint, {BID}"
    order_by = "dateTime"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        bids = []
        for row in rows:
            if row.auction is not None:
                columns = {name: value for name, value in row.auction.items() if name != "id"}
                self.auction.set(dateTime=row.dateTime, **columns)
            else:
                bids.append((row.bid["bidder"], row.bid["price"], row.dateTime, row.bid["extra"]))
        auction = self.auction.get()
        if auction is None:
            self.early.extend(bids)
            return
        bids += map(tuple, self.early)
        self.early.clear()
        before = self.best.get()
        valid = [bid for bid in bids if auction.dateTime <= bid[2] <= auction.expires]
        if before is not None:
            valid.append(tuple(before))
        best = min(valid, key=_rank, default=None)
        if best is not None and (before is None or best != tuple(before)):
            self.best.set(*best)
            yield key.id, *auction, key.id, *best


def _rank(bid: tuple[Any, ...]) -> tuple[Any, ...]:
    bidder, price, at, extra = bid
    return -price, at, bidder, extra


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q9")
    events = pipeline.read("events", parameters.source())
    rows = events.where("event_type > 0").select(
        "coalesce(auction.id, bid.auction) AS id", "auction", "bid", "dateTime"
    )
    winning = rows.key_by("id").process(WinningBid, name="winning")
    winning.write("q9", parameters.sink(mode="updates"))
    return pipeline
