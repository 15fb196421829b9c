"""Query 19, top ten: the ten highest bids of each auction.

Equal bids are ranked by time. When a rank changes, all ranks of the auction are output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline
from epochal.connectors import nexmark

BID = "bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string"


class TopTen(KeyedProcess):
    """Ranks the highest bids of an auction."""

    highest = ListState(BID)
    output = f"auction bigint, {BID}, rank_number bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        before = [tuple(bid) for bid in self.highest]
        bids = [(row.bidder, row.price, row.channel, row.url, row.dateTime, row.extra) for row in rows]
        now = nsmallest(10, before + bids, key=_rank)
        if now != before:
            self.highest.clear()
            self.highest.extend(now)
            for rank, bid in enumerate(now, 1):
                yield key.auction, *bid, rank


def _rank(bid: tuple[Any, ...]) -> tuple[Any, ...]:
    bidder, price, channel, url, at, extra = bid
    return -price, at, bidder, channel, url, extra


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q19")
    events = pipeline.read("events", parameters.source())
    top = nexmark.bids(events).key_by("auction").process(TopTen, name="top")
    top.write("q19", parameters.sink(mode="updates"))
    return pipeline
