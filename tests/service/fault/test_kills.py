"""The driver and its tasks are killed (SIGKILL) at every declared fault point of every numbered step.

Each test takes a copy of an application with some committed epochs, kills a driver at a point (or two drivers, the
second during recovery), and runs another one to the end of the input. Then the history is compared with the
sequential oracle: state at every epoch, rows of each sink in every epoch, no undecided epoch visible, no
unreferenced file.

The drivers have no Spark (``tests.kit.local_engine.attempt``). Every run kills one for each class of effect; the run
of all tests kills one at every point. Simulations crash at each point in every run. Real drivers with Spark are
killed in ``test_kills_with_spark.py``.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pytest

import epochal.backends
import epochal.engine
import epochal.operators.loops
import epochal.tasks
from epochal.engine import points
from epochal.faults import FaultPoint
from epochal.testing.invariants import violations, visible_epochs, visible_rows
from epochal.testing.oracle import slices
from tests.kit.cuts import Mark, Trace, cut_violations
from tests.service.fault.points import in_every_run, points_of

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = [*(f"E{n}" for n in range(1, 8)), *(f"T{n}" for n in range(1, 4)), *(f"R{n}" for n in range(1, 6))]
OTHER_SINKS = ("log", "kafka", "hdfs", "objects", "dbms", "postgresql")
"""Their points are tested in test_kafka.py, test_hdfs.py, test_object_files.py and test_dbms.py, with their servers."""


@dataclass(frozen=True)
class Life:
    """The end of one life of the driver.

        ``where``: in its first epoch, during recovery of an epoch in state ``finds``, or at the first hit of the
    point. ``raises``: a point of the same epoch that raises an error before.
    """

    point: str
    where: Literal["first epoch", "recovery", "anywhere"] = "first epoch"
    finds: Literal["started", "prepared"] | None = None
    raises: str | None = None

    def __str__(self) -> str:
        return f"{self.point}, {self.where}" + (f", {self.finds} epoch" if self.finds else "")


LIVES = (
    # Ordered so that each life finds its precondition when they run one after another. First undecided epochs, which
    # leave no trace.
    Life("E1.before"),
    Life("E1.slices-chosen"),
    Life("E1.opened"),
    Life("E2.before-run"),
    Life("E2.ran"),
    Life("E3.collected"),
    Life("E4.before-manifest"),
    Life("E4.manifest-written"),
    # During recovery of an undecided epoch.
    Life("R4.swept", "recovery", "started"),
    Life("R4.aborted", "recovery", "started"),
    Life("R5.go-on", "anywhere"),
    # Decided epochs are committed by recovery.
    Life("E4.prepared"),
    # During recovery of a decided epoch with a partial commit of its sink.
    Life("R1.begun", "recovery", "prepared"),
    Life("R1.sinks-fenced", "recovery", "prepared"),
    Life("R2.found", "recovery", "prepared"),
    Life("E5.files.gathered-one", "recovery", "prepared"),
    Life("R3.finished", "recovery", "prepared"),
    # During commit and retention.
    Life("E5.before-sink"),
    Life("E5.files.gathering"),
    Life("E5.files.gathered-one"),
    Life("E5.files.gathered"),
    Life("E5.files.renamed"),
    Life("E5.sink-committed"),
    Life("E6.before-publish"),
    Life("E6.published"),
    Life("E6.acknowledged"),
    Life("E7.before-retain"),
    Life("E7.swept"),
    Life("E7.base-written", "anywhere"),
    Life("E7.bases-written", "anywhere"),
    # During the abort of a failed epoch.
    Life("abort.before-sweep", raises="E3.collected"),
    Life("abort.swept", raises="E4.manifest-written"),
)
ONE_OF_EACH_CLASS = (
    # Undecided: nothing done; tasks done; manifest written; during the sweep.
    Life("E1.opened"),
    Life("E2.ran"),
    Life("E4.manifest-written"),
    Life("R4.swept", "recovery", "started"),
    # Decided, and again during the commit by recovery.
    Life("E4.prepared"),
    Life("E5.files.gathered-one", "recovery", "prepared"),
    # Partly committed by the sink, fully committed, published.
    Life("E5.files.gathered-one"),
    Life("E5.sink-committed"),
    Life("E6.published"),
    # Compaction, which the simulations do not cover.
    Life("E7.base-written", "anywhere"),
    Life("E7.bases-written", "anywhere"),
    # Failed, and swept.
    Life("abort.swept", raises="E4.manifest-written"),
)
"""Lives that are tested in every run."""
PRECEDING_KILL = {"started": "E4.manifest-written", "prepared": "E5.files.gathered-one"}
"""The point at which the previous life must be killed, by the state that recovery finds."""


def task_points() -> list[str]:
    return [name for name in sorted(all_points()) if name.startswith("T")]


def all_points() -> set[str]:
    """Every point that the engine, its tasks, the state backends and the files sink declare."""
    found = points_of(epochal.engine, epochal.operators.loops, epochal.tasks, epochal.backends)
    return {name for name in found if name.split(".")[1] not in OTHER_SINKS}


def run_life(application: FaultyApplication, life: Life) -> None:
    """Run one life, or two if the first must leave an epoch to recover."""
    epoch = application.next_epoch
    if life.finds is not None:
        application.kill_at(application.fault(PRECEDING_KILL[life.finds], "kill", epoch))
        assert life.finds in {record.state for record in application.epochs}
    first_epoch_only = life.where != "anywhere" and (
        life.where == "first epoch" or life.point.startswith(("E", "R4.swept"))
    )
    at = epoch if first_epoch_only else None
    raising = [application.fault(life.raises, "raise", at)] if life.raises else []
    application.kill_at(application.fault(life.point, "kill", at), before=raising)


def check_the_end(application: FaultyApplication) -> None:
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []
    aborted = [record for record in application.epochs if record.state == "aborted"]
    assert all(record.failure for record in aborted)
    assert {record.failure.type for record in aborted if record.failure} <= {"attempt-lost", "epoch-aborted"}
    assert wrong_cuts(application) == []


def wrong_cuts(application: FaultyApplication) -> list[str]:
    """Check definition 3.4.2 over the trace of all source events and the output rows that they produced."""
    history = application.history
    source: list[object] = []
    sink: list[object] = []
    cuts: dict[int, set[object]] = {}
    cut: set[object] = set()
    for _, manifest in history.snapshots:
        read = [("read", row["event"]) for row in slices(manifest)["events"]]
        written = [("written", dict(row)["event"]) for row in visible_rows(history.outputs["streaks"], manifest.epoch)]
        source += [*read, Mark("source", manifest.epoch)]
        sink += [*written, Mark("sink", manifest.epoch)]
        cut = cuts[manifest.epoch] = cut | {*read, *written}
    read_events = {event for event in source if not isinstance(event, Mark)}
    trace = Trace({"source": source, "sink": sink}, {event: [("written", event[1])] for event in read_events})  # type: ignore[index]
    return [problem for epoch, cut in cuts.items() for problem in cut_violations(trace, epoch, cut)]


@pytest.mark.parametrize("life", in_every_run(ONE_OF_EACH_CLASS, LIVES))
@pytest.mark.claim("Thesis, 4.1.3.1", "SDG, table 1, failure recovery")
def test_killed_driver_leaves_a_correct_history(local: FaultyApplication, life: Life) -> None:
    run_life(local, life)
    local.finish()
    check_the_end(local)


@pytest.mark.parametrize("life", in_every_run([Life(PRECEDING_KILL["prepared"])], map(Life, PRECEDING_KILL.values())))
def test_driver_killed_repeatedly_leaves_a_correct_history(local: FaultyApplication, life: Life) -> None:
    for _ in range(3):
        run_life(local, life)
    local.finish()
    check_the_end(local)


@pytest.mark.parametrize("backend", in_every_run(["heap"], ["heap", "lmdb"]))
def test_killed_tasks_are_run_again(new_local: NewApplication, backend: str) -> None:
    """In one life, each epoch loses a task at another point; one further epoch sweeps the leftovers."""
    application, lost = new_local(state_backend=backend), task_points()
    application.feed(len(lost) + 1)
    faults = [application.fault(point, "kill", number) for number, point in enumerate(lost, 1)]
    driver = application.start(task_faults=faults, epochs=len(lost) + 1, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert [fault.point for fault in faults if not application.fired(fault)] == []
    assert {record.state for record in application.epochs} == {"committed"}
    check_the_end(application)


def test_every_step_has_a_fault_point_and_every_fault_point_a_test() -> None:
    assert {life.point for life in LIVES} | set(task_points()) == all_points()
    assert {point.partition(".")[0] for point in all_points()} == {*STEPS, "abort"}
    assert {point.step for point in vars(points).values() if isinstance(point, FaultPoint)} == {
        step for step in (*STEPS, "abort") if not step.startswith("T")
    }


class TestChecks:
    """The checks find errors."""

    def test_lost_row_is_found(self, local: FaultyApplication) -> None:
        epoch = visible_epochs(local.outputs["totals"])[-1]
        next((local.outputs["totals"] / f"epoch={epoch:010}").glob("*.parquet")).unlink()
        assert any("sink totals" in problem for problem in violations(local.history, local.oracles))

    def test_duplicate_row_is_found(self, local: FaultyApplication) -> None:
        first, second = visible_epochs(local.outputs["streaks"])[:2]
        source = next((local.outputs["streaks"] / f"epoch={first:010}").glob("*.parquet"))
        shutil.copy(source, local.outputs["streaks"] / f"epoch={second:010}")
        assert any(f"sink streaks, epoch {second}" in problem for problem in violations(local.history, local.oracles))

    def test_undecided_epoch_is_found(self, local: FaultyApplication) -> None:
        (local.outputs["totals"] / "epoch=0000009999").mkdir()
        assert any("9999, which was never decided" in problem for problem in violations(local.history, local.oracles))

    def test_unreferenced_file_is_found(self, local: FaultyApplication) -> None:
        delta = local.history.snapshots[0][1].deltas[0].file.path
        local.store.write(f"{delta}-stray", b"")
        (local.outputs["totals"] / "_staging").mkdir(exist_ok=True)
        (local.outputs["totals"] / "_staging" / "stray.parquet").write_bytes(b"")
        assert sum("stray" in problem for problem in violations(local.history, local.oracles)) == 2

    def test_wrong_state_is_found(self, local: FaultyApplication) -> None:
        oracles = [
            replace(local.oracles[0], step=lambda before, rows: (before or {"events": 1}, ())),
            local.oracles[1],
        ]
        assert any("state totals.state at epoch" in problem for problem in violations(local.history, oracles))
