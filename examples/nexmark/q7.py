"""Query 7, highest bid: the bids with the highest price in each 10 seconds.

A join of the bids with the highest price of their window. The price is output when the window closes, with the window's
last instant as its time; until then bids wait in the state of the join.

Lateness (beyond ``delay``) differs between the two operators. A bid is late for the join when the watermark has passed
its time; for the aggregate only when its window has closed, up to ten seconds later. In between it counts for the
highest price but is not output, and neither are lower bids: a window whose highest bid was late has no output. Late
rows are counted, and available as streams: ``late`` of the aggregate, ``left_late`` of the join.
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
