"""Standing queries in an application without Spark: what they answer, from when on, and through everything that happens
to an application."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.contracts.catalog import Directive, QueryCommand
from epochal.contracts.conditions import BEGINNING, Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.engine.standing import StandingQueries
from epochal.errors import Fenced, PipelineError
from epochal.snapshots import layout
from epochal.snapshots.store import SnapshotStore
from epochal.standing.active import ActiveQueries, StandingQuery, decoded
from epochal.standing.binding import bound
from epochal.standing.query import Query
from epochal.tasks.standing_layout import NOTHING, fulfils, layout_of, results, shown
from epochal.tasks.standing_partials import DOUBLES, GROUP, INTEGERS, LEAST_OF, WINDOW_END, Chunk
from tests.lives import HAPPENINGS, PARALLELISM, Life, Step, examples, failing_at
from tests.manifests import plain_manifest
from tests.programs import program_of
from tests.standing import BEGIN, COLUMNS, SCHEMA, Grammar, rows

NOTHING_HAPPENS = Step()
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
    """As the control plane gives them: again and again, until they are carried out."""

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

    def epoch(self, rows: Iterable[dict[str, Any]], step: Step = NOTHING_HAPPENS) -> None:
        self.deliver()
        self._life.epoch(step, rows=list(rows))

    def go(self, rows: Iterable[dict[str, Any]], step: Step = NOTHING_HAPPENS) -> None:
        """An epoch, and those that it makes due."""
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
    """The same over all rows at once."""
    standing = StandingQuery(id, "queries", "", query, "ada", since, 1)
    found = list(Chunk(table.combine_chunks().to_batches()[0], "at", BEGINNING).partials([standing]))
    if not found:
        return []
    (partials,) = found
    layout = layout_of(query)
    # A window that slides is made of the partials of several panes.
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
        of_panes = partials[name].flatten().to_numpy(zero_copy_only=False).reshape(len(partials), width)
        merged = np.full((len(places), width), start, of_panes.dtype)
        operation.at(merged, codes, of_panes)
        blocks.append(merged)
    values, errors = results(query, *blocks)
    before = remembered(query, list(places), values)
    told = zip(places, shown(query, values, before), fulfils(query, values, errors, before).tolist(), strict=True)
    return sorted(((id, *key, text) for key, text, holds in told if holds), key=repr)


def remembered(query: Query, windows: Sequence[tuple[Any, str]], values: list[list[Any]]) -> dict[str, list[Any]]:
    """Of each aggregate what it was in the group's last window before, if that was among the last 30 of the query."""
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


def last_row() -> dict[str, Any]:
    """One that closes all windows of the others."""
    return {**dict.fromkeys(COLUMNS), "at": END}


def closed(found: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in found if answer[1] <= END]


@examples(5)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.builds(Step, HAPPENINGS, PARALLELISM), min_size=3, max_size=6))
def test_answers_are_those_of_a_batch_whatever_happens(seed: int, steps: list[Step]) -> None:
    grammar, chance = Grammar(random.Random(seed)), random.Random(seed)
    texts = [grammar.query() for _ in range(6)]
    table = rows(chance, 120).sort_by("at")
    with life() as alive:
        commands = Commands(alive)
        for text in texts:
            commands.add(text)
        size = -(-len(table) // (1 + len(steps)))
        for number, step in enumerate([Step(), *steps]):
            commands.epoch(table.slice(number * size, size).to_pylist(), step)
        commands.epoch([last_row()])
        alive.settle()
        expected = [
            answer for id, text in enumerate(texts, 1) for answer in closed(batch(id, bound(text, COLUMNS), table))
        ]
        assert answers(alive) == sorted(expected, key=repr)


COUNT = "SELECT count(*) AS n WINDOW '10 minutes'"


def minute(*minutes: float) -> list[dict[str, Any]]:
    return [{**dict.fromkeys(COLUMNS), "device": "phone", "at": BEGIN + timedelta(minutes=each)} for each in minutes]


def counts(life: Life, query: int | None = None) -> dict[float, int]:
    """By the window's start, in minutes."""
    return {
        (row["window_start"] - BEGIN).total_seconds() / 60: json.loads(row["values"])["n"]
        for row in life.all_of("out")
        if query in (None, row["query"])
    }


def test_a_query_begins_with_the_first_window_of_which_it_sees_every_row() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.go(minute(1, 12))
        commands.add(COUNT)
        commands.go(minute(13, 25))
        commands.go(minute(26, 31, 45))
        commands.go(minute(60))
        assert counts(alive) == {20: 2, 30: 1, 40: 1}
        assert commands.outcomes == {"query-1": None}


def test_a_query_is_paused_resumed_and_dropped() -> None:
    with life() as alive:
        commands = Commands(alive)
        one, other = commands.add(COUNT), commands.add(COUNT)
        commands.go(minute(1, 11))
        commands.order("pause", one)
        commands.go(minute(12, 21))
        commands.order("resume", one)
        commands.go(minute(22, 32, 41))
        commands.go(minute(51))
        assert counts(alive, one) == {0: 1, 30: 1, 40: 1}
        assert counts(alive, other) == {0: 1, 10: 2, 20: 2, 30: 1, 40: 1}
        commands.order("drop", other)
        commands.order("pause", 7)
        commands.go(minute(71))
        assert {row["query"] for row in alive.state("queries")} == {one}
        assert {row["query"] for row in alive.state("queries.open")} == {one}
        assert commands.outcomes["query-6"] == "There is no standing query 7 any more."
        changes = [
            change.detail for manifest in alive.manifests for change in manifest.changes if change.kind == "queries"
        ]
        missing = {"type": "not-found", "message": "There is no standing query 7 any more."}
        assert changes == [
            {"added": [1, 2], "carried_out": [1, 2]},
            {"paused": [1], "carried_out": [3]},
            {"resumed": [1], "carried_out": [4]},
            {"dropped": [2], "carried_out": [5, 6], "refused": {"6": missing}},
        ]


def test_a_query_expires_by_the_time_of_epochs() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(COUNT, expires_at=int((alive.clock + timedelta(seconds=30)).timestamp() * 1_000_000))
        commands.go(minute(1), Step(clock=0))
        commands.go(minute(11), Step(clock=29))
        commands.go(minute(21), Step(clock=30))
        assert counts(alive) == {0: 1}
        assert alive.manifests[-1].conditions.queries.rows == 0  # type: ignore[union-attr]


def test_a_branch_goes_on_with_the_queries_of_its_snapshot() -> None:
    with life() as alive:
        commands = Commands(alive)
        one = commands.add(COUNT)
        commands.go(minute(1))
        commands.add(COUNT)
        commands.go(minute(2, 11))
        before = alive.manifests[-1].queries
        assert before is not None and before.rows == 2
        alive.go_on_from(1, "other")
        branch = Commands(alive)
        branch.number = commands.number
        three = branch.add(COUNT)
        branch.go(())
        branch.go(minute(31))
        file = alive.manifests[-1].queries
        assert file is not None
        queries = decoded(alive.store.read_file(file, "the test")).queries
        assert [query.id for query in queries] == [one, three]
        assert counts(alive, one) == {0: 2, 10: 1}


def test_a_version_without_the_operator_pauses_its_queries(tmp_path: Path) -> None:
    store, path = SnapshotStore(str(tmp_path)), layout.standing_queries(EpochKey("main", 1))
    data = ActiveQueries(1, (StandingQuery(1, "queries", COUNT, bound(COUNT, COLUMNS), "ada", 0, 1),)).encode()
    store.write(path, data)
    file = EpochQueries(path=path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), rows=1, through=1)
    conditions = EpochConditions(clock=Clock(epoch_time=0))
    parent = plain_manifest(1, conditions=conditions.model_copy(update={"queries": file}))
    chosen = StandingQueries(store).chosen(EpochKey("main", 2), parent, conditions, program_of())
    assert [query.state for query in decoded(chosen.data).queries] == ["paused"]
    assert [change.detail for change in chosen.changes] == [{"paused": [1]}]


def test_an_aborted_epoch_carries_out_no_command() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.go(minute(1))
        commands.add(COUNT)
        commands.deliver()
        alive.epoch(Step("abort"), rows=minute(11))
        assert [manifest.queries.rows if manifest.queries else 0 for manifest in alive.manifests] == [0, 1]
        assert [change.detail for change in alive.manifests[-1].changes] == [{"added": [1], "carried_out": [1]}]


def test_what_became_of_a_command_is_told_by_the_driver_that_follows() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.epoch(minute(1))
        commands.add(COUNT)
        commands.order("pause", 7)
        commands.deliver()
        with failing_at("E4.prepared", Fenced("the driver is gone")) as fired, pytest.raises(Fenced):
            alive.epoch(Step(), rows=minute(2))
        assert fired
        alive.restart()
        alive.epoch(Step(), rows=minute(3))
        commands.deliver()
        position = alive.coordinator.position
        found = list(alive.coordinator.queries.answers(position.head, position.snapshot))
        told = [(directive, head and head.epoch, failure and failure.type) for directive, head, failure in found]
        assert told == [("query-1", 2, None), ("query-2", 2, "not-found")]


REMEMBERS = "SELECT device, count(*) AS n, remember(n) AS before GROUP BY device{} WINDOW '10 minutes'"


def told(life: Life, query: int | None = None) -> dict[float, Any]:
    """Values by the window's start, in minutes."""
    rows = [row for row in life.all_of("out") if query in (None, row["query"])]
    return {(row["window_start"] - BEGIN).total_seconds() / 60: json.loads(row["values"]) for row in rows}


def test_a_query_remembers_what_a_group_had_in_its_window_before() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(REMEMBERS.format(""))
        jumps = commands.add(REMEMBERS.format(" HAVING n > try_multiply(2, remember(n))"))
        commands.go(minute(1, 2, 11))
        # Several windows that close in one epoch, and a gap: the last window that had rows is what is remembered.
        commands.go(minute(12, 21, 51, 52, 53))
        commands.go(minute(70))
        assert told(alive, 1) == {
            0: {"n": 2, "before": None},
            10: {"n": 2, "before": 2},
            20: {"n": 1, "before": 2},
            50: {"n": 3, "before": 1},
        }
        # HAVING leaves results out, and what is remembered is as it would be without.
        assert told(alive, jumps) == {50: {"n": 3, "before": 1}}
        commands.order("drop", 1)
        commands.go(minute(71))
        assert {row["query"] for row in alive.state("queries.before")} == {jumps}


def test_what_a_group_had_is_forgotten_after_thirty_windows() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(REMEMBERS.format(""))
        commands.go(minute(1))
        commands.go(minute(301))
        commands.go(minute(611))
        commands.go(minute(621))
        commands.go(minute(1_000))
        assert {start: row["before"] for start, row in told(alive).items()} == {0: None, 300: 1, 610: None, 620: 1}
        assert alive.state("queries.before") == []


def test_a_query_that_is_resumed_remembers_nothing_of_what_was_before() -> None:
    with life() as alive:
        commands = Commands(alive)
        query = commands.add(REMEMBERS.format(""))
        commands.go(minute(1, 11))
        commands.order("pause", query)
        commands.go(minute(21))
        commands.order("resume", query)
        commands.go(minute(31, 41, 51))
        assert {start: row["before"] for start, row in told(alive).items()} == {0: None, 30: None, 40: 1}


def test_a_result_with_an_error_is_shown_whatever_having_says() -> None:
    with life(groups=1) as alive:
        commands = Commands(alive)
        commands.add("SELECT sum(user) AS total, count(*) AS n HAVING n > 100 WINDOW '10 minutes'")
        commands.add(
            "SELECT device, count(*) AS n, remember(n) AS before GROUP BY device HAVING n > 100 WINDOW '10 minutes'"
        )
        commands.go({**row, "user": 2**63 - 1, "device": str(n)} for n, row in enumerate(minute(1, 2)))
        commands.go({**row, "user": 1} for row in minute(11, 31))
        found = {(row["query"], row["values"], row["error"]) for row in alive.all_of("out")}
        assert found == {
            (1, '{"total":null,"n":2}', "total leaves the range of bigint"),
            (2, None, "the window has more than 1 groups; group by less, or filter"),
        }


def test_a_window_with_too_many_groups_says_so() -> None:
    with life(groups=3) as alive:
        commands = Commands(alive)
        commands.add("SELECT items, count(*) AS n GROUP BY items WINDOW '10 minutes'")
        for first in (0, 2):
            commands.go({**row, "items": first + number} for number, row in enumerate(minute(1, 2, 3)))
        commands.go({**row, "items": 1} for row in minute(11, 21))
        found = [(row["group"], row["values"], row["error"]) for row in alive.all_of("out")]
        assert found == [
            ('{"items":1}', '{"n":1}', None),
            ("{}", None, "the window has more than 3 groups; group by less, or filter"),
        ]
        assert len(alive.state("queries.open")) == 1


def test_rows_that_come_after_their_window_has_closed_are_counted() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(COUNT)
        commands.go(minute(1, 21))
        commands.go(())
        commands.go(minute(2, 3, 22))
        commands.go(minute(4, 31))
        assert counts(alive) == {0: 1, 20: 2}
        assert alive.state("queries.late") == [{"query": 1, "rows": 3}]


def test_results_are_kept_as_long_as_declared() -> None:
    with life(keep="1 hour") as alive:
        commands = Commands(alive)
        commands.add(COUNT)
        commands.go(minute(1, 11), Step(clock=0))
        commands.go(minute(21), Step(clock=10))
        assert [row["values"] for row in alive.state("queries")] == ['{"n":1}'] * 2
        commands.go(minute(31), Step(clock=3700))
        assert [row["values"] for row in alive.state("queries")] == ['{"n":1}']


def test_as_many_queries_as_the_author_allows() -> None:
    with life(limit=1) as alive:
        commands = Commands(alive)
        commands.add(COUNT)
        commands.add(COUNT)
        commands.go(minute(1))
        outcomes = commands.outcomes
        assert outcomes["query-1"] is None
        assert "as many as the application allows" in (outcomes["query-2"] or "")


def test_a_sum_that_leaves_bigint_is_an_error_of_its_window() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add("SELECT sum(user) AS total, max(user) AS most WINDOW '10 minutes'")
        commands.go({**row, "user": 2**63 - 1} for row in minute(1, 2))
        commands.go({**row, "user": 1} for row in minute(11, 21))
        assert [(row["values"], row["error"]) for row in alive.all_of("out")] == [
            ('{"total":null,"most":9223372036854775807}', "total leaves the range of bigint"),
            ('{"total":1,"most":1}', None),
        ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"windows": "1 hour"}, "Give the shortest and the longest"),
        ({"windows": ("1 hour", "1 minute")}, "Give the shortest first"),
        ({"limit": 0}, "limit is 0. Give a number from 1 to 10,000"),
        ({"groups": True}, "groups is True"),
        ({"keep": "soon"}, "keep is 'soon'"),
    ],
)
def test_what_an_author_may_not_declare(settings: dict[str, Any], message: str) -> None:
    events = Pipeline("standing").read("rows", generator.source({"at": "id"})).with_watermark("at", "1 second")
    with pytest.raises(PipelineError, match=message):
        events.standing_queries("queries", **settings)


def test_a_stream_without_event_time_has_no_windows() -> None:
    with pytest.raises(PipelineError, match="with_watermark"):
        Pipeline("standing").read("rows", generator.source({"at": "id"})).standing_queries("queries")
