"""Conditions of an epoch: derived from its parent, stored in its manifest, with the due times of its subtasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from epochal.contracts.catalog import EpochCounts
from epochal.contracts.conditions import Clock, Command, Due, EpochConditions, Watermarks, as_datetime, microseconds
from epochal.contracts.handle import Handle
from epochal.engine.epoch_input import conditions_after, conditions_at_rest
from epochal.engine.job import Answers, collect
from epochal.service.catalog.models import Epoch
from epochal.service.catalog.records import columns_of
from epochal.snapshots.manifest import Manifest
from epochal.state.watermarks import BEGINNING, END, Declaration, Opening, TimedOperator, TimeGraph

SECOND = 1_000_000
CREATED_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON = microseconds(CREATED_AT)
GRAPH = TimeGraph((Declaration("ts", delay=0), TimedOperator("late", ("ts",))))


def after(parent: Manifest | None, now: int) -> EpochConditions:
    return conditions_after(GRAPH, parent, Opening(now))


def at(epoch_time: int, **places: Watermarks) -> EpochConditions:
    return EpochConditions(clock=Clock(epoch_time=epoch_time, places=places))


def manifest(**fields: Any) -> Manifest:
    identity = {
        "application": "flights",
        "branch": "main",
        "epoch": 1,
        "parent": None,
        "execution": "one",
        "attempt": 1,
    }
    size = {"artifact": "a" * 64, "parallelism": 1, "max_parallelism": 8, "created_at": CREATED_AT}
    return Manifest.model_validate({**identity, **size, **fields})


def handle(subtask: int, **due: int) -> Handle:
    return Handle(owner="late", subtask=subtask, rows=0, bytes=0, payload={}, due=Due(**due) if due else None)


@pytest.mark.parametrize("behind", [0, SECOND])
def test_epoch_time_never_decreases_when_the_clock_does(behind: int) -> None:
    parent = manifest(conditions=at(NOON + SECOND))
    assert after(parent, NOON + SECOND - behind).epoch_time == NOON + SECOND
    assert after(parent, NOON + 3 * SECOND).epoch_time == NOON + 3 * SECOND
    assert after(None, NOON).epoch_time == NOON


def test_the_fire_watermark_is_the_late_watermark_of_the_next_epoch() -> None:
    before = manifest(conditions=at(NOON, late=Watermarks(late=NOON - SECOND, fire=NOON)))
    assert after(before, NOON).watermarks("late") == Watermarks(late=NOON, fire=NOON)
    assert after(before, NOON).watermarks("another") == Watermarks()


def test_watermarks_and_epoch_time_stay_when_no_operator_runs() -> None:
    before = manifest(conditions=at(NOON, late=Watermarks(late=NOON - SECOND, fire=NOON)))
    assert conditions_at_rest(before).clock == before.clock


def test_manifests_store_conditions_to_the_microsecond() -> None:
    conditions = at(NOON + 1, late=Watermarks(fire=NOON), ended=Watermarks(late=BEGINNING, fire=END))
    conditions = conditions.opened("input", "command", commands=(Command(kind="savepoint"),))
    written = manifest(conditions=conditions, due={"late": Due(processing=NOON)})
    assert Manifest.decode(written.encode(), "1.json") == written


def test_times_convert_exactly_or_to_none() -> None:
    for time in (NOON, NOON + 1, 0, -1):
        found = as_datetime(time)
        assert found is not None and microseconds(found) == time
    assert as_datetime(END) is None and as_datetime(BEGINNING) is None


def test_an_operator_waits_for_the_earliest_time_of_its_subtasks() -> None:
    handles = [
        handle(0, event=NOON + SECOND),
        handle(1, event=NOON, processing=NOON + 2 * SECOND),
        handle(2),
        handle(3, processing=NOON + SECOND),
    ]
    answers = Answers({"late": handles, "never": [handle(n) for n in range(4)]}, [], (), ())
    assert collect(answers, {"late": 4, "never": 4}, []).due == {"late": Due(event=NOON, processing=NOON + SECOND)}


def test_handles_without_due_times_omit_the_field() -> None:
    assert b"due" not in handle(0).encode()
    waiting = handle(0, event=NOON)
    assert Handle.decode(waiting.encode()) == waiting


def test_epoch_counts_are_columns_of_the_catalog() -> None:
    counts = EpochCounts(rows_in=3, late_rows={"windows": 2}, rejected_rows={"ts": 1})
    assert columns_of(counts).keys() <= set(Epoch.__table__.columns.keys())
    assert EpochCounts.model_validate_json(counts.model_dump_json()) == counts
