"""Query 8, monitor new users: who registered and began auctions in the same 10 seconds?

A semi join of two streams: each person comes out once, with the first auction, in whatever order they come. Nobody has
to wait for the end of the 10 seconds; the state forgets them when none can come any more.
"""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q8")
    events = pipeline.read("events", parameters.source())
    start = "window({}, '10 seconds').start AS starttime"
    people = nexmark.persons(events).select("id", "name", "dateTime AS registered", start.format("dateTime"))
    sellers = nexmark.auctions(events).select("seller AS id", "dateTime AS began", start.format("dateTime"))
    people = people.with_watermark("registered", parameters.delay)
    sellers = sellers.with_watermark("began", parameters.delay)
    within = ("-10 seconds", "10 seconds")
    new = people.join(sellers, on=("id", "starttime"), within=within, how="left_semi", name="new")
    new.select("id", "name", "starttime").write("q8", parameters.sink())
    return pipeline
