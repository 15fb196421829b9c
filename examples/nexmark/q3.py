"""Query 3, local item suggestion: sellers from Oregon, Idaho or California in category 10, with their auctions.

A join of two streams: sellers and auctions arrive in any order and epochs. State stores the person of each seller, and
auctions that arrived before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline, ValueState
from epochal.connectors import nexmark


class LocalSellers(KeyedProcess):
    """Outputs each auction of a seller after the person has arrived."""

    person = ValueState("name string, city string, state string")
    waiting = ListState("auction bigint")
    output = "name string, city string, state string, id bigint"
    order_by = "auction"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        auctions = [row.auction for row in rows if row.auction is not None]
        for row in rows:
            if row.auction is None:
                self.person.set(row.name, row.city, row.state)
        person = self.person.get()
        if person is None:
            self.waiting.extend(auctions)
            return
        for auction in [*self.waiting, *auctions]:
            yield *person, auction
        self.waiting.clear()


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q3")
    events = pipeline.read("events", parameters.source())
    matching = events.where("person.state IN ('OR', 'ID', 'CA') OR auction.category = 10").select(
        "coalesce(person.id, auction.seller) AS seller",
        *("person.name", "person.city", "person.state", "auction.id AS auction"),
    )
    sellers = matching.key_by("seller").process(LocalSellers, name="sellers")
    sellers.write("q3", parameters.sink())
    return pipeline
