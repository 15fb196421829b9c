"""Query 3, local item suggestion: who sells in Oregon, Idaho or California in category 10, and which auctions?

A join of two streams: a seller and an auction may come in any order, in any epochs. Each seller's state holds the
person, and the auctions that came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from epochal import Context, KeyedProcess, ListState, Pipeline, ValueState
from epochal.connectors import nexmark


class LocalSellers(KeyedProcess):
    """Of one seller: each auction, once the person is known."""

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
