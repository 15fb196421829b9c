"""Query 12, processing time windows: number of bids that a bidder places in 10 seconds of processing time.

Processing time is the time of the epoch, the same for all bids of an epoch and for retries. Windows support event time
only, so state stores the counts of a bidder, and timers in processing time output them. The first epoch after the end
of a window outputs it; windows that are open at the end of the source are not output.
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
    """Counts the bids of a bidder in each open window."""

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
