"""Query 21, channel ids: known channels by name, others by the URL. Bids without either are dropped."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q21")
    events = pipeline.read("events", parameters.source())
    known = "element_at(map('apple', '0', 'google', '1', 'facebook', '2', 'baidu', '3'), lower(channel))"
    in_page = "split_part(nullif(substring_index(url, '&channel_id=', -1), url), '&', 1)"
    bids = nexmark.bids(events).with_columns(channel_id=f"coalesce({known}, {in_page})").where("channel_id IS NOT NULL")
    bids.select("auction", "bidder", "price", "channel", "channel_id").write("q21", parameters.sink())
    return pipeline
