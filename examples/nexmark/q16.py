"""Query 16, channel statistics: number of bids, bidders and auctions at three price levels, by channel and
day.
"""

from __future__ import annotations

from typing import Any

from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import nexmark

RANKS = {"rank1": "price < 10000", "rank2": "price BETWEEN 10000 AND 999999", "rank3": "price >= 1000000"}
"""The price levels."""
DISTINCT = 10_000_000
"""Maximum number of distinct bidders or auctions of a key."""


def statistics() -> dict[str, Any]:
    """Counts bids, bidders and auctions, in total and by price level."""
    columns: dict[str, Any] = {"total_bids": "count(*)"}
    columns |= {f"{rank}_bids": f"count_if({condition})" for rank, condition in RANKS.items()}
    for what in ("bidder", "auction"):
        columns[f"total_{what}s"] = F.count_distinct(what, limit=DISTINCT)
        for rank, condition in RANKS.items():
            columns[f"{rank}_{what}s"] = F.count_distinct(F.expr(f"IF({condition}, {what}, NULL)"), limit=DISTINCT)
    return columns


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q16")
    events = pipeline.read("events", parameters.source())
    bids = nexmark.bids(events).with_columns(
        day="date_format(dateTime, 'yyyy-MM-dd')", minute="date_format(dateTime, 'HH:mm')"
    )
    channels = bids.key_by("channel", "day").aggregate("channels", minute="max(minute)", **statistics())
    channels.write("q16", parameters.sink(mode="updates"))
    return pipeline
