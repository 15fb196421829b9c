"""Standing queries in an application without Spark: answers, first windows, and all events in the life of an
application."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from epochal import Pipeline
from epochal.connectors import generator
from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.engine.standing_queries import StandingQueries
from epochal.errors import Fenced, PipelineError
from epochal.snapshots import layout
from epochal.snapshots.store import SnapshotStore
from epochal.standing_queries.active import ActiveQueries, StandingQuery, decoded
from epochal.standing_queries.binding import bound
from tests.kit.lives import DISRUPTIONS, PARALLELISM, Step, examples, failing_at
from tests.kit.manifests import plain_manifest
from tests.kit.programs import program_of
from tests.kit.standing import COLUMNS, Grammar, rows
from tests.kit.standing_lives import (
    COUNT,
    END,
    Answer,
    Commands,
    answers,
    batch,
    counts,
    life,
    minute,
)


def last_row() -> dict[str, Any]:
    """A row that closes all windows of the other rows."""
    return {**dict.fromkeys(COLUMNS), "at": END}


def closed(found: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in found if answer[1] <= END]


@examples(5)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.builds(Step, DISRUPTIONS, PARALLELISM), min_size=3, max_size=6))
@pytest.mark.alternating(2)
def test_answers_equal_those_of_a_batch_despite_failures(seed: int, steps: list[Step]) -> None:
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


def test_a_query_starts_with_its_first_complete_window() -> None:
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
        assert commands.outcomes["query-6"] == "Standing query 7 no longer exists."
        changes = [
            change.detail for manifest in alive.manifests for change in manifest.changes if change.kind == "queries"
        ]
        missing = {"type": "not-found", "message": "Standing query 7 no longer exists."}
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


def test_a_branch_continues_the_queries_of_its_snapshot() -> None:
    with life() as alive:
        commands = Commands(alive)
        one = commands.add(COUNT)
        commands.go(minute(1))
        commands.add(COUNT)
        commands.go(minute(2, 11))
        before = alive.manifests[-1].queries
        assert before is not None and before.rows == 2
        alive.continue_from(1, "other")
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


def test_an_aborted_epoch_executes_no_command() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.go(minute(1))
        commands.add(COUNT)
        commands.deliver()
        alive.epoch(Step("abort"), rows=minute(11))
        assert [manifest.queries.rows if manifest.queries else 0 for manifest in alive.manifests] == [0, 1]
        assert [change.detail for change in alive.manifests[-1].changes] == [{"added": [1], "carried_out": [1]}]


def test_the_next_driver_reports_the_result_of_a_command() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.epoch(minute(1))
        commands.add(COUNT)
        commands.order("pause", 7)
        commands.deliver()
        with failing_at("E4.prepared", Fenced("the driver was fenced")) as fired, pytest.raises(Fenced):
            alive.epoch(Step(), rows=minute(2))
        assert fired
        alive.restart()
        alive.epoch(Step(), rows=minute(3))
        commands.deliver()
        position = alive.coordinator.position
        found = list(alive.coordinator.queries.answers(position.head, position.snapshot))
        reported = [(directive, head and head.epoch, failure and failure.type) for directive, head, failure in found]
        assert reported == [("query-1", 2, None), ("query-2", 2, "not-found")]


def test_a_window_with_too_many_groups_has_an_error() -> None:
    with life(groups=3) as alive:
        commands = Commands(alive)
        commands.add("SELECT items, count(*) AS n GROUP BY items WINDOW '10 minutes'")
        for first in (0, 2):
            commands.go({**row, "items": first + number} for number, row in enumerate(minute(1, 2, 3)))
        commands.go({**row, "items": 1} for row in minute(11, 21))
        found = [(row["group"], row["values"], row["error"]) for row in alive.all_of("out")]
        assert found == [
            ('{"items":1}', '{"n":1}', None),
            ("{}", None, "the window has more than 3 groups; group by fewer columns, or filter"),
        ]
        assert len(alive.state("queries.open")) == 1


def test_rows_of_closed_windows_are_counted() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(COUNT)
        commands.go(minute(1, 21))
        commands.go(())
        commands.go(minute(2, 3, 22))
        commands.go(minute(4, 31))
        assert counts(alive) == {0: 1, 20: 2}
        assert alive.state("queries.late") == [{"query": 1, "rows": 3}]


def test_results_are_stored_for_the_declared_time() -> None:
    with life(keep="1 hour") as alive:
        commands = Commands(alive)
        commands.add(COUNT)
        commands.go(minute(1, 11), Step(clock=0))
        commands.go(minute(21), Step(clock=10))
        assert [row["values"] for row in alive.state("queries")] == ['{"n":1}'] * 2
        commands.go(minute(31), Step(clock=3700))
        assert [row["values"] for row in alive.state("queries")] == ['{"n":1}']


def test_the_author_limits_the_number_of_queries() -> None:
    with life(limit=1) as alive:
        commands = Commands(alive)
        commands.add(COUNT)
        commands.add(COUNT)
        commands.go(minute(1))
        outcomes = commands.outcomes
        assert outcomes["query-1"] is None
        assert "the maximum that the application allows" in (outcomes["query-2"] or "")


def test_an_overflow_of_bigint_is_an_error_of_its_window() -> None:
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
        ({"windows": "1 hour"}, "Specify the shortest and the longest"),
        ({"windows": ("1 hour", "1 minute")}, "Specify the shortest first"),
        ({"limit": 0}, "limit is 0. Use a number from 1 to 10,000"),
        ({"groups": True}, "groups is True"),
        ({"keep": "soon"}, "keep is 'soon'"),
    ],
)
def test_invalid_declarations_are_refused(settings: dict[str, Any], message: str) -> None:
    events = Pipeline("standing").read("rows", generator.source({"at": "id"})).with_watermark("at", "1 second")
    with pytest.raises(PipelineError, match=message):
        events.standing_queries("queries", **settings)


def test_a_stream_without_event_time_has_no_windows() -> None:
    with pytest.raises(PipelineError, match="with_watermark"):
        Pipeline("standing").read("rows", generator.source({"at": "id"})).standing_queries("queries")
