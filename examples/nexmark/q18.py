"""Query 18, last bid: the last bid of each bidder for each auction.

Of several bids at the same time, the highest. A later bid of the same bidder is output again.
"""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q18")
    events = pipeline.read("events", parameters.source())
    last = (
        nexmark.bids(events)
        .key_by("bidder", "auction")
        .aggregate("last", dateTime="max(dateTime)", bid="max_by(struct(price, channel, url, extra), dateTime)")
    )
    columns = ("bid.price", "bid.channel", "bid.url", "dateTime", "bid.extra")
    last.select("auction", "bidder", *columns).write("q18", parameters.sink(mode="updates"))
    return pipeline
