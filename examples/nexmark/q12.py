"""Query 12, processing time windows: how many bids does a bidder place in 10 seconds of the clock?

The clock is that of the epochs: all bids of one epoch come at its time, which a retry does not change. Windows are of
event time only, so the counts are kept in the state of a bidder, and given out by timers in processing time. A window
is given out by the first epoch after its end; what is still open when the source ends does not come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from epochal import Context, KeyedProcess, MapState, Pipeline
from epochal.connectors import nexmark

WINDOW = timedelta(seconds=10)
FIRST = datetime(1970, 1, 1, tzinfo=UTC)


class BidsByTheClock(KeyedProcess):
    """Of one bidder: the number of bids in each window that has not ended."""

    counts = MapState(key="endtime timestamp", value="bid_count bigint")
    output = "bidder bigint, bid_count bigint, starttime timestamp, endtime timestamp"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        end = ctx.epoch_time - (ctx.epoch_time - FIRST) % WINDOW + WINDOW
        self.counts.put(end, self.counts.get(end, 0) + len(rows))
        ctx.processing_timer(end)

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[tuple[Any, ...]]:
        yield key.bidder, self.counts[at], at - WINDOW, at
        self.counts.remove(at)


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q12")
    events = pipeline.read("events", parameters.source())
    bids = nexmark.bids(events).select("bidder")
    bids.key_by("bidder").process(BidsByTheClock, name="by_the_clock").write("q12", parameters.sink())
    return pipeline
