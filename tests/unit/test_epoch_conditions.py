"""What an epoch runs with: chosen from its parent, kept in its manifest, and what its subtasks wait for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochal.contracts.conditions import Command, Due, EpochConditions, Watermarks
from epochal.contracts.handle import Handle
from epochal.engine.answers import Answers, collect
from epochal.engine.conditions import conditions_after
from epochal.snapshots.manifest import Manifest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def manifest(**fields: Any) -> Manifest:
    whose = {"application": "flights", "branch": "main", "epoch": 1, "parent": None, "execution": "one", "attempt": 1}
    size = {"artifact": "a" * 64, "parallelism": 1, "max_parallelism": 8, "created_at": NOON}
    return Manifest.model_validate({**whose, **size, **fields})


def handle(subtask: int, **due: datetime) -> Handle:
    return Handle(owner="late", subtask=subtask, rows=0, bytes=0, payload={}, due=Due(**due) if due else None)


@pytest.mark.parametrize("behind", [timedelta(0), SECOND])
def test_the_epoch_time_never_falls_whatever_the_clock_says(behind: timedelta) -> None:
    parent = manifest(conditions=EpochConditions(epoch_time=NOON + SECOND), created_at=NOON + 2 * SECOND)
    assert conditions_after(parent, NOON + SECOND - behind).epoch_time == NOON + SECOND
    assert conditions_after(parent, NOON + 3 * SECOND).epoch_time == NOON + 3 * SECOND
    assert conditions_after(None, NOON).epoch_time == NOON


def test_of_a_manifest_from_before_conditions_the_epoch_time_is_when_it_was_made() -> None:
    parent = manifest(format=1)
    assert conditions_after(parent, NOON - SECOND) == EpochConditions(epoch_time=NOON)
    assert b"conditions" not in parent.encode() and b"due" not in parent.encode()


def test_what_was_fired_is_late_in_the_next_epoch() -> None:
    before = EpochConditions(epoch_time=NOON, watermarks={"late": Watermarks(late=NOON - SECOND, fire=NOON)})
    after = conditions_after(manifest(conditions=before), NOON)
    assert after.watermarks == {"late": Watermarks(late=NOON, fire=NOON)}


def test_they_are_read_back_from_the_manifest_to_the_microsecond() -> None:
    conditions = EpochConditions(
        epoch_time=NOON + timedelta(microseconds=1),
        watermarks={"late": Watermarks(fire=NOON)},
        opened_for=("input", "command"),
        commands=(Command(kind="savepoint"),),
    )
    written = manifest(conditions=conditions, due={"late": Due(processing=NOON)})
    assert Manifest.decode(written.encode(), "1.json") == written


def test_the_least_of_all_subtasks_is_what_an_operator_waits_for() -> None:
    handles = [
        handle(0, event=NOON + SECOND),
        handle(1, event=NOON, processing=NOON + 2 * SECOND),
        handle(2),
        handle(3, processing=NOON + SECOND),
    ]
    answers = Answers({"late": handles, "never": [handle(n) for n in range(4)]}, [], (), 0)
    assert collect(answers, ["late", "never"], [], 4).due == {"late": Due(event=NOON, processing=NOON + SECOND)}


def test_a_handle_that_waits_for_nothing_is_written_as_before() -> None:
    assert b"due" not in handle(0).encode()
    waiting = handle(0, event=NOON)
    assert Handle.decode(waiting.encode()) == waiting
