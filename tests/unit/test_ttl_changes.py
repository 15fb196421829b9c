"""A time to live that an upgrade adds or changes: effect on existing rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.conditions import BEGINNING
from epochal.engine.job import EpochRunner, Participants
from epochal.engine.program import Program, going_on
from epochal.pipeline.description import GraphDescription
from epochal.service.domain.comparison import compared
from epochal.snapshots.continuation import Continuation, continuation
from epochal.snapshots.lineage import clock_of
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.state.continuing import continued
from epochal.state.evolution import compare
from epochal.state.expiry import Expiry, StateClock
from epochal.state.table import Column, StateTable
from tests.unit.snapshot_tree import SESSIONS, TOTALS, Branch

PLAIN = SESSIONS.model_copy(update={"value": SESSIONS.value[:1], "expires": None})


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    return Branch(SnapshotStore(f"memory://{tmp_path}"), tables=(PLAIN,), clock=StateClock(event=0, processing=0))


def living(after: int, **changes: Any) -> StateTable:
    expiry = Expiry(clock="processing", column="_touched", after=after).model_copy(update=changes)
    return StateTable.model_validate(SESSIONS.model_dump() | {"expires": expiry})


def upgraded(branch: Branch, table: StateTable) -> None:
    assert branch.head is not None
    head = branch.store.read_manifest(branch.head)
    assert not continuation(branch.store, branch.head, [table], {}, (), {table.operator: 1}).problems
    branch.tables = (continued(table, head.tables[0], clock_of(head, table.id)),)


def visible_after(branch: Branch, processing: int, *rows: tuple[str, int]) -> set[str]:
    """Touch these rows in the next epoch and return the airports of the rows visible after it."""
    branch.clock = StateClock(event=0, processing=processing)
    table = branch.tables[0]
    touched = "_touched" in table.value_schema.names
    changes = [(table, ("N1", place), {"late": 1} | ({"_touched": at} if touched else {})) for place, at in rows]
    branch.state.clear()  # the tests state the expected rows
    head = branch.epoch(*changes)
    return {row["airport"] for row in SnapshotReader(branch.store, head).read(table.id).to_pylist()}


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_without_a_time_count_from_the_upgrade(branch: Branch, compacted: bool) -> None:
    visible_after(branch, 7, ("old", 0), ("older", 0))
    visible_after(branch, 50)
    upgraded(branch, living(5))
    assert visible_after(branch, 54, ("new", 52)) == {"old", "older", "new"}
    if compacted:
        branch.compact()
    assert visible_after(branch, 54, ("old", 54)) == {"old", "older", "new"}
    upgraded(branch, living(5))  # every attempt declares the table without the floor in the lineage
    assert visible_after(branch, 55) == {"old", "new"}
    assert visible_after(branch, 57) == {"old"}


@pytest.mark.parametrize("compacted", [False, True])
def test_expired_rows_do_not_return_when_the_time_to_live_grows(branch: Branch, compacted: bool) -> None:
    branch.tables = (living(5),)
    visible_after(branch, 10, ("expired", 5), ("alive", 8), ("refreshed", 5))
    if compacted:
        branch.compact()
    upgraded(branch, living(20))
    assert visible_after(branch, 11) == {"alive"}
    upgraded(branch, living(20))
    assert visible_after(branch, 27, ("refreshed", 27)) == {"alive", "refreshed"}
    assert visible_after(branch, 28) == {"refreshed"}
    upgraded(branch, living(1))
    assert visible_after(branch, 28) == set()
    upgraded(branch, living(100))
    assert visible_after(branch, 28, ("new", 28)) == {"new"}


def test_preflight_reports_the_effect_on_existing_rows() -> None:
    event = {"clock": "event"}
    for before, after, message in (
        (PLAIN, living(5), "begins at the epoch time of the snapshot"),
        (PLAIN, living(5, **event), "begins at the watermark, or else the epoch time, of the snapshot"),
        (living(5), living(9), "expired rows do not return"),
        (living(9), living(5), "older rows expire with the first epoch"),
        (living(5), living(5, refresh="read_and_write"), "also reads refresh its rows"),
        (living(5, refresh="read_and_write"), living(5), "only writes refresh its rows"),
    ):
        (change,) = compare([before], [after])
        assert (change.verdict, change.problems, change.added) == ("evolved", (), ())
        empty = GraphDescription(name="flights", nodes=(), sinks={})
        found = compared(empty, empty, Continuation((change,), ()))
        assert [message in warning for warning in found.warnings] == [True]
    (same,) = compare([living(5, floor=3)], [living(5)])
    assert same.verdict == "same"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (PLAIN, "cannot be removed"),
        (living(5, clock="event"), "cannot expire by '_touched' in event time"),
    ],
)
def test_a_time_to_live_cannot_be_removed_or_change_its_clock(after: StateTable, why: str) -> None:
    (change,) = compare([living(5)], [after])
    assert [why in problem for problem in change.problems] == [True]


def test_an_aggregate_may_gain_but_not_lose_a_time_to_live() -> None:
    touched = Column(name="_touched", type="timestamp")
    expires = Expiry(clock="processing", column="_touched", after=5)
    timed = StateTable.model_validate(TOTALS.model_dump() | {"value": (*TOTALS.value, touched), "expires": expires})
    (change,) = compare([TOTALS], [timed])
    assert (change.verdict, change.problems, len(change.notes)) == ("evolved", (), 1)
    (change,) = compare([timed], [TOTALS])
    assert ["or give the operator a new name" in problem for problem in change.problems] == [True]


@pytest.mark.parametrize(("watermark", "last"), [(BEGINNING, 54), (30, 34)])
def test_rows_in_event_time_count_from_the_watermark_or_the_epoch_time(
    branch: Branch, watermark: int, last: int
) -> None:
    visible_after(branch, 50, ("old", 0))
    branch.clock = StateClock(event=watermark, processing=50)
    branch.epoch()
    upgraded(branch, living(5, clock="event"))

    def visible(event: int) -> set[str]:
        branch.clock = StateClock(event=event, processing=50)
        branch.state.clear()
        return {row["airport"] for row in SnapshotReader(branch.store, branch.epoch()).read(SESSIONS.id).to_pylist()}

    assert visible(last) == {"old"}
    assert visible(last + 1) == set()


def test_a_program_continues_with_the_declarations_of_its_lineage(branch: Branch) -> None:
    class Runner(EpochRunner):
        declared: tuple[StateTable, ...] = ()

        def declaring(self, participants: Participants) -> EpochRunner:
            other = Runner()
            other.declared = participants.tables
            return other

        def run(self, plan: Any, timeout_seconds: float) -> Any: ...

        def deltas(self, handle: Any) -> Any: ...

    unused: Any = None
    program = Program(unused, unused, unused, Participants(tables=(living(9),)), Runner())
    assert going_on(program, None) is program
    branch.tables = (living(9),)
    visible_after(branch, 3)
    assert branch.head is not None
    assert going_on(program, branch.store.read_manifest(branch.head)) is program
    branch.tables = (living(2),)
    visible_after(branch, 10)
    found = going_on(program, branch.store.read_manifest(branch.head))
    assert found.participants.tables == (living(9, floor=8),)
    assert isinstance(found.runner, Runner)
    assert found.runner.declared == found.participants.tables
