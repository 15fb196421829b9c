"""Query 7, highest bid: which bids have the highest price of each 10 seconds?

A join of the bids with the highest price of their window. That comes once the window has closed, with the window's last
instant as its time: so long the bids wait in the state of the join.

What is late (beyond ``delay``) differs between the two operators. A bid is late to the join as soon as the watermark
is past its own time; to the aggregate only when its window has closed, up to ten seconds later. In between it counts
for the highest price and comes out itself no more, nor do lower bids in its stead: a window whose highest bid was late
gives nothing. Both are counted, and would be streams: ``late`` of the aggregate, ``left_late`` of the join.
"""

from __future__ import annotations

from epochal import Pipeline, tumbling
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q7")
    events = pipeline.read("events", parameters.source())
    bids = nexmark.bids(events).select("auction", "bidder", "price", "dateTime", "extra")
    bids = bids.with_columns(starttime="window(dateTime, '10 seconds').start")
    bids = bids.with_watermark("dateTime", parameters.delay)
    highest = bids.key_by("starttime").window(tumbling("10 seconds")).aggregate("highest", price="max(price)")
    highest = highest.select("starttime", "price", "window_time")
    joined = bids.join(highest, on=("starttime", "price"), within=("0 seconds", "10 seconds"), name="highest_bids")
    joined.select("auction", "bidder", "price", "dateTime", "extra").write("q7", parameters.sink())
    return pipeline
