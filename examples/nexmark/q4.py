"""Query 4, average price of a category: average winning bid of its auctions.

A bid counts while its auction is open, and can arrive before it. State stores the highest bid of each auction. A higher
bid is output as two rows, which subtract the old price and add the new one. Averages of categories therefore always
reflect the highest bids so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline, ValueState
from epochal.connectors import nexmark


class HighestBid(KeyedProcess):
    """Outputs the changes of sum and number of the highest bids of an auction's category."""

    auction = ValueState("category bigint, begins timestamp, expires timestamp")
    early = ListState("price bigint, at timestamp")
    highest = ValueState("price bigint")
    output = "category bigint, price bigint, auctions int"
    order_by = "dateTime"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        bids = [(row.price, row.dateTime) for row in rows if row.price is not None]
        for row in rows:
            if row.price is None:
                self.auction.set(row.category, row.dateTime, row.expires)
        auction = self.auction.get()
        if auction is None:
            self.early.extend(bids)
            return
        bids += self.early.get()
        self.early.clear()
        before = self.highest.get()
        now = max((price for price, at in bids if auction.begins <= at <= auction.expires), default=None)
        if now is None or (before is not None and now <= before):
            return
        if before is not None:
            yield auction.category, -before, -1
        self.highest.set(now)
        yield auction.category, now, 1


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q4")
    events = pipeline.read("events", parameters.source())
    rows = events.where("event_type > 0").select(
        "coalesce(auction.id, bid.auction) AS id",
        *("auction.category", "auction.expires", "dateTime", "bid.price"),
    )
    changes = rows.key_by("id").process(HighestBid, name="highest")
    averages = changes.key_by("category").aggregate("categories", final="sum(price) div sum(auctions)")
    averages.write("q4", parameters.sink(mode="updates"))
    return pipeline
