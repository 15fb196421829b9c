"""An application without Spark that accepts standing queries, commands to it, and the same queries in one batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.contracts.catalog import Directive, QueryCommand
from epochal.contracts.conditions import BEGINNING
from epochal.operators.standing_queries.aggregate_layout import NOTHING, fulfils, layout_of, results, shown
from epochal.operators.standing_queries.partials import DOUBLES, GROUP, INTEGERS, LEAST_OF, WINDOW_END, Chunk
from epochal.standing_queries.active import StandingQuery
from epochal.standing_queries.binding import bound
from epochal.standing_queries.query import Query
from tests.kit.lives import Life, Step
from tests.kit.standing import BEGIN, COLUMNS, SCHEMA

NO_FAULT = Step()
Answer = tuple[int, Any, str, str | None]
END = BEGIN + timedelta(hours=3)


def pipeline(limit: int = 1_000, groups: int = 10_000, keep: str = "7 days") -> Pipeline:
    pipeline = Pipeline("standing")
    events = pipeline.read("rows", generator.source(dict.fromkeys(COLUMNS, "id")))
    answered = events.with_watermark("at", "0 seconds").standing_queries(
        "queries", ("1 minute", "1 hour"), limit=limit, groups=groups, keep=keep
    )
    answered.write("out", console.sink())
    return pipeline


def life(**settings: Any) -> Life:
    return Life(pipeline(**settings), {"rows": SCHEMA})


class Commands:
    """Commands of a control plane, delivered repeatedly until they are carried out."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._given: list[Directive] = []
        self.number = 0

    def add(self, text: str, expires_at: int | None = None) -> int:
        query = bound(text, COLUMNS)
        self._give(kind="add", operator="queries", text=text, bound=query.json, expires_at=expires_at)
        return self.number

    def order(self, kind: Any, query: int) -> None:
        self._give(kind=kind, query=query)

    def _give(self, query: int | None = None, **fields: Any) -> None:
        self.number += 1
        command = QueryCommand(number=self.number, query=query or self.number, by="ada", **fields)
        self._given.append(Directive(id=f"query-{self.number}", kind="query", arguments=command.model_dump()))

    def epoch(self, rows: Iterable[dict[str, Any]], step: Step = NO_FAULT) -> None:
        self.deliver()
        self._life.epoch(step, rows=list(rows))

    def go(self, rows: Iterable[dict[str, Any]], step: Step = NO_FAULT) -> None:
        """Run an epoch, and the epochs that it makes due."""
        self.epoch(rows, step)
        self._life.settle()

    def deliver(self) -> None:
        for directive in self._given:
            self._life.coordinator.queries.take(directive)

    @property
    def outcomes(self) -> dict[str, str | None]:
        position = self._life.coordinator.position
        answers = self._life.coordinator.queries.answers(position.head, position.snapshot)
        return {directive: None if failure is None else failure.message for directive, _, failure in answers}


def answers(life: Life) -> list[Answer]:
    return sorted(
        ((row["query"], row["window_end"], row["group"], row["values"]) for row in life.all_of("out")), key=repr
    )


def batch(id: int, query: Query, table: pa.Table, since: int = BEGINNING) -> list[Answer]:
    """Return the answers of the query over all rows in one batch."""
    standing = StandingQuery(id, "queries", "", query, "ada", since, 1)
    found = list(Chunk(table.combine_chunks().to_batches()[0], "at", BEGINNING).partials([standing]))
    if not found:
        return []
    (partials,) = found
    layout = layout_of(query)
    # A sliding window combines the partials of several panes.
    places: dict[tuple[Any, str], int] = {}
    codes = [
        places.setdefault(key, len(places))
        for key in zip(partials[WINDOW_END].to_pylist(), partials[GROUP].to_pylist(), strict=True)
    ]
    blocks = []
    for name, width, operation, start in (
        (INTEGERS, layout.integers, np.add, 0),
        (DOUBLES, layout.doubles, np.add, 0.0),
        (LEAST_OF, layout.least, np.minimum, NOTHING),
    ):
        pane_values = partials[name].flatten().to_numpy(zero_copy_only=False).reshape(len(partials), width)
        merged = np.full((len(places), width), start, pane_values.dtype)
        operation.at(merged, codes, pane_values)
        blocks.append(merged)
    values, errors = results(query, *blocks)
    before = remembered(query, list(places), values)
    rows = zip(places, shown(query, values, before), fulfils(query, values, errors, before).tolist(), strict=True)
    return sorted(((id, *key, text) for key, text, holds in rows if holds), key=repr)


def remembered(query: Query, windows: Sequence[tuple[Any, str]], values: list[list[Any]]) -> dict[str, list[Any]]:
    """Return the previous value of each aggregate: its value in the group's preceding window.

    Only windows among the last 30 of the query count.
    """
    found: dict[str, list[Any]] = {aggregate.name: [] for aggregate in query.aggregates}
    reach = timedelta(microseconds=30 * query.slide)
    for end, group in windows:
        earlier = {
            other: row
            for (other, of), row in zip(windows, values, strict=True)
            if of == group and end - reach <= other < end
        }
        last = earlier[max(earlier)] if earlier else [None] * len(query.aggregates)
        for aggregate, value in zip(query.aggregates, last, strict=True):
            found[aggregate.name].append(value)
    return found


COUNT = "SELECT count(*) AS n WINDOW '10 minutes'"


def minute(*minutes: float) -> list[dict[str, Any]]:
    return [{**dict.fromkeys(COLUMNS), "device": "phone", "at": BEGIN + timedelta(minutes=each)} for each in minutes]


def counts(life: Life, query: int | None = None) -> dict[float, int]:
    """Return the counts by the window's start in minutes."""
    return {
        (row["window_start"] - BEGIN).total_seconds() / 60: json.loads(row["values"])["n"]
        for row in life.all_of("out")
        if query in (None, row["query"])
    }
