"""Query 5, hot items: the auctions with the most bids in windows of 10 seconds that slide by 2 seconds.

Sliding windows count the bids of each auction. The second operator has the window as its key. Its timer waits for the
end of the window, when the counts of all auctions have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline, ValueState, sliding
from epochal.connectors import nexmark


class MostBids(KeyedProcess):
    """Outputs the auctions of a window with the highest number of bids."""

    most = ValueState("num bigint")
    auctions = ListState("auction bigint")
    output = "auction bigint, num bigint, starttime timestamp, endtime timestamp"
    order_by = "auction"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        most = max(row.num for row in rows)
        before = self.most.get()
        if before is None:
            ctx.timer(key.endtime)
        elif most < before:
            return
        if most != before:
            self.most.set(most)
            self.auctions.clear()
        self.auctions.extend(row.auction for row in rows if row.num == most)

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[tuple[Any, ...]]:
        for auction in self.auctions:
            yield auction, self.most.get(), key.starttime, key.endtime
        self.most.clear()
        self.auctions.clear()


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q5")
    events = pipeline.read("events", parameters.source())
    bids = nexmark.bids(events).with_watermark("dateTime", parameters.delay)
    counted = bids.key_by("auction").window(sliding("10 seconds", "2 seconds")).aggregate("counted", num="count(*)")
    counts = counted.select("auction", "num", "window_start AS starttime", "window_end AS endtime", "window_time")
    counts.key_by("starttime", "endtime").process(MostBids, name="hot").write("q5", parameters.sink())
    return pipeline
