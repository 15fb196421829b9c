"""The driver is killed (SIGKILL) at every declared point of every numbered step, and so are its tasks.

Each test is one story: a copy of an application that has had some epochs, a driver that dies where the fault says (or
two, the second in its recovery), and one that runs the input to its end. Then the whole history is compared with the
sequential oracle: state at every epoch, each sink's rows of every epoch, no epoch shown that was not decided, no file
that nobody refers to.

The drivers have no Spark (``tests.kit.local_engine.attempt``). In every run one is killed for each class of effect, in
the run of all tests at every point; the simulations crash at each in every run. Real drivers, with Spark, are killed
in ``test_kills_with_spark.py``.
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
OTHER_SINKS = ("log", "kafka", "hdfs", "dbms", "postgresql")
"""Their points are met in test_kafka.py, test_hdfs.py and test_dbms.py, with their servers."""


@dataclass(frozen=True)
class Life:
    """How one life of the driver ends.

    ``where``: in its first epoch, while it recovers an epoch in state ``finds``, or wherever the point is first met.
    ``raises``: a point of the same epoch where something goes wrong before.
    """

    point: str
    where: Literal["first epoch", "recovery", "anywhere"] = "first epoch"
    finds: Literal["started", "prepared"] | None = None
    raises: str | None = None

    def __str__(self) -> str:
        return f"{self.point}, {self.where}" + (f", {self.finds} epoch" if self.finds else "")


LIVES = (
    # In an order in which each finds what it needs when they are lived one after the other.
    # Undecided: without trace.
    Life("E1.before"),
    Life("E1.slices-chosen"),
    Life("E1.opened"),
    Life("E2.before-run"),
    Life("E2.ran"),
    Life("E3.collected"),
    Life("E4.before-manifest"),
    Life("E4.manifest-written"),
    # While it recovers an undecided epoch.
    Life("R4.swept", "recovery", "started"),
    Life("R4.aborted", "recovery", "started"),
    Life("R5.go-on", "anywhere"),
    # Decided: redone until done.
    Life("E4.prepared"),
    # While it recovers a decided epoch, its sink's commit half-way.
    Life("R1.begun", "recovery", "prepared"),
    Life("R1.sinks-fenced", "recovery", "prepared"),
    Life("R2.found", "recovery", "prepared"),
    Life("E5.files.gathered-one", "recovery", "prepared"),
    Life("R3.finished", "recovery", "prepared"),
    # While it commits and retains.
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
    # While it aborts an epoch that has failed.
    Life("abort.before-sweep", raises="E3.collected"),
    Life("abort.swept", raises="E4.manifest-written"),
)
OF_EACH_CLASS = (
    # Undecided: nothing done; tasks done; the manifest there; while it is swept.
    Life("E1.opened"),
    Life("E2.ran"),
    Life("E4.manifest-written"),
    Life("R4.swept", "recovery", "started"),
    # Decided, and again in the commit that recovery redoes.
    Life("E4.prepared"),
    Life("E5.files.gathered-one", "recovery", "prepared"),
    # Half-way in the sink, done there, published.
    Life("E5.files.gathered-one"),
    Life("E5.sink-committed"),
    Life("E6.published"),
    # Compaction, which no simulation has.
    Life("E7.base-written", "anywhere"),
    Life("E7.bases-written", "anywhere"),
    # Failed, and swept.
    Life("abort.swept", raises="E4.manifest-written"),
)
"""What every run tests."""
HALF_WAY = {"started": "E4.manifest-written", "prepared": "E5.files.gathered-one"}
"""By what a recovery finds, where the life before it has died."""


def task_points() -> list[str]:
    return [name for name in sorted(all_points()) if name.startswith("T")]


def all_points() -> set[str]:
    """Every point that the engine, its tasks, the state backends and the files sink declare."""
    found = points_of(epochal.engine, epochal.operators.loops, epochal.tasks, epochal.backends)
    return {name for name in found if name.split(".")[1] not in OTHER_SINKS}


def die(application: FaultyApplication, life: Life) -> None:
    """One life, or two where the one before has to leave something to recover."""
    epoch = application.next_epoch
    if life.finds is not None:
        application.dies_at(application.fault(HALF_WAY[life.finds], "kill", epoch))
        assert life.finds in {record.state for record in application.epochs}
    of_an_epoch = life.where != "anywhere" and (life.where == "first epoch" or life.point.startswith(("E", "R4.swept")))
    at = epoch if of_an_epoch else None
    raising = [application.fault(life.raises, "raise", at)] if life.raises else []
    application.dies_at(application.fault(life.point, "kill", at), before=raising)


def check_the_end(application: FaultyApplication) -> None:
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []
    aborted = [record for record in application.epochs if record.state == "aborted"]
    assert all(record.failure for record in aborted)
    assert {record.failure.type for record in aborted if record.failure} <= {"attempt-lost", "epoch-aborted"}
    assert wrong_cuts(application) == []


def wrong_cuts(application: FaultyApplication) -> list[str]:
    """Definition 3.4.2 over the trace of all source events and the output rows that they produced."""
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


@pytest.mark.parametrize("life", in_every_run(OF_EACH_CLASS, LIVES))
@pytest.mark.claim("Thesis, 4.1.3.1", "SDG, table 1, failure recovery")
def test_a_driver_that_died_leaves_nothing_wrong(local: FaultyApplication, life: Life) -> None:
    die(local, life)
    local.finish()
    check_the_end(local)


@pytest.mark.parametrize("life", in_every_run([Life(HALF_WAY["prepared"])], map(Life, HALF_WAY.values())))
def test_a_driver_that_dies_again_and_again_at_one_point_leaves_nothing_wrong(
    local: FaultyApplication, life: Life
) -> None:
    for _ in range(3):
        die(local, life)
    local.finish()
    check_the_end(local)


@pytest.mark.parametrize("backend", in_every_run(["heap"], ["heap", "lmdb"]))
def test_tasks_that_died_are_run_again(new_local: NewApplication, backend: str) -> None:
    """One life, whose epochs lose a task each, at one point after the other; one more epoch sweeps what is left."""
    application, lost = new_local(state_backend=backend), task_points()
    application.feed(len(lost) + 1)
    faults = [application.fault(point, "kill", number) for number, point in enumerate(lost, 1)]
    driver = application.start(task_faults=faults, epochs=len(lost) + 1, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert [fault.point for fault in faults if not application.fired(fault)] == []
    assert {record.state for record in application.epochs} == {"committed"}
    check_the_end(application)


def test_every_step_has_a_point_and_every_point_is_met() -> None:
    assert {life.point for life in LIVES} | set(task_points()) == all_points()
    assert {point.partition(".")[0] for point in all_points()} == {*STEPS, "abort"}
    assert {point.step for point in vars(points).values() if isinstance(point, FaultPoint)} == {
        step for step in (*STEPS, "abort") if not step.startswith("T")
    }


class TestTheChecksThemselves:
    """They find what is wrong, when something is."""

    def test_a_lost_row(self, local: FaultyApplication) -> None:
        epoch = visible_epochs(local.outputs["totals"])[-1]
        next((local.outputs["totals"] / f"epoch={epoch:010}").glob("*.parquet")).unlink()
        assert any("sink totals" in problem for problem in violations(local.history, local.oracles))

    def test_a_row_twice(self, local: FaultyApplication) -> None:
        first, second = visible_epochs(local.outputs["streaks"])[:2]
        source = next((local.outputs["streaks"] / f"epoch={first:010}").glob("*.parquet"))
        shutil.copy(source, local.outputs["streaks"] / f"epoch={second:010}")
        assert any(f"sink streaks, epoch {second}" in problem for problem in violations(local.history, local.oracles))

    def test_an_epoch_that_was_never_decided(self, local: FaultyApplication) -> None:
        (local.outputs["totals"] / "epoch=0000009999").mkdir()
        assert any("9999, which was never decided" in problem for problem in violations(local.history, local.oracles))

    def test_a_file_that_nobody_names(self, local: FaultyApplication) -> None:
        delta = local.history.snapshots[0][1].deltas[0].file.path
        local.store.write(f"{delta}-stray", b"")
        (local.outputs["totals"] / "_staging").mkdir(exist_ok=True)
        (local.outputs["totals"] / "_staging" / "stray.parquet").write_bytes(b"")
        assert sum("stray" in problem for problem in violations(local.history, local.oracles)) == 2

    def test_another_state(self, local: FaultyApplication) -> None:
        oracles = [
            replace(local.oracles[0], step=lambda before, rows: (before or {"events": 1}, ())),
            local.oracles[1],
        ]
        assert any("state totals.state at epoch" in problem for problem in violations(local.history, oracles))
