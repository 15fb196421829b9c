"""Query 8, monitor new users: persons that registered and opened auctions in the same 10 seconds.

A semi join of two streams: each person is output once, with the first auction, whichever arrives first. Output does not
wait for the end of the 10 seconds; state is deleted when no more matches can arrive.
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
