"""Query 6, average selling price by seller: average winning bid of a seller's last ten auctions.

Auctions are ordered by their closing times and count from their first bid on. (The published text says ten auctions but
uses eleven, in the order of bids; Flink SQL does not run it.) An auction with ten later ones cannot return, so state
stores ten auctions per seller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from epochal import Context, KeyedProcess, ListState, MapState, Pipeline, ValueState
from epochal.connectors import nexmark


class HighestBid(KeyedProcess):
    """Outputs each new highest bid of an auction."""

    auction = ValueState("seller bigint, begins timestamp, expires timestamp")
    early = ListState("price bigint, at timestamp")
    highest = ValueState("price bigint")
    output = "seller bigint, id bigint, expires timestamp, price bigint"
    order_by = "dateTime"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        bids = [(row.price, row.dateTime) for row in rows if row.price is not None]
        for row in rows:
            if row.price is None:
                self.auction.set(row.seller, row.dateTime, row.expires)
        auction = self.auction.get()
        if auction is None:
            self.early.extend(bids)
            return
        bids += self.early.get()
        self.early.clear()
        before = self.highest.get()
        now = max((price for price, at in bids if auction.begins <= at <= auction.expires), default=None)
        if now is not None and (before is None or now > before):
            self.highest.set(now)
            yield auction.seller, key.id, auction.expires, now


class LastTen(KeyedProcess):
    """Computes the average of a seller's last ten auctions."""

    auctions = MapState(key="id bigint", value="expires timestamp, price bigint")
    output = "seller bigint, avg_price bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        known = dict(self.auctions.items())
        changed = {row.id: (row.expires, row.price) for row in rows}
        every = {**known, **changed}
        last = sorted(every, key=lambda id: (every[id][0], id))[-10:]
        for id in known.keys() - set(last):
            self.auctions.remove(id)
        for id in changed.keys() & set(last):
            self.auctions.put(id, changed[id])
        yield key.seller, sum(every[id][1] for id in last) // len(last)


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q6")
    events = pipeline.read("events", parameters.source())
    rows = events.where("event_type > 0").select(
        "coalesce(auction.id, bid.auction) AS id",
        *("auction.seller", "auction.expires", "dateTime", "bid.price"),
    )
    highest = rows.key_by("id").process(HighestBid, name="highest")
    averages = highest.key_by("seller").process(LastTen, name="sellers")
    averages.write("q6", parameters.sink(mode="updates"))
    return pipeline
