"""The driver is killed (SIGKILL) at every declared point of every numbered step, and so are its tasks. One history.

Life after life of one application: each starts from what the last one left, and dies where it is told. In the end the
input is run to its end, and the whole history is compared with the sequential oracle: state at every epoch, each sink's
rows of every epoch, no epoch shown that was not decided, no file that nobody refers to.

All lives share one JVM (see ``epochal.testing.drivers``), which makes so many of them affordable in every run; that a
JVM dies with its driver is what ``test_whole_processes.py`` shows.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import epochal.backends
import epochal.engine
import epochal.engine.tasks
from epochal.engine import points
from epochal.faults import FaultPoint
from epochal.snapshots.store import SnapshotStore
from epochal.testing.cuts import Mark, Trace, cut_violations
from epochal.testing.invariants import violations, visible_epochs, visible_rows, wrongly_visible
from epochal.testing.oracle import slices
from tests.fault.points import points_of

if TYPE_CHECKING:
    from tests.fault.conftest import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = [*(f"E{n}" for n in range(1, 8)), *(f"T{n}" for n in range(1, 4)), *(f"R{n}" for n in range(1, 6))]
FILES_AHEAD = 10
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
    # Undecided: without trace.
    Life("E1.before"),
    Life("E1.slices-chosen"),
    Life("E1.opened"),
    Life("E2.before-run"),
    Life("E2.ran"),
    Life("E3.collected"),
    Life("E4.before-manifest"),
    Life("E4.manifest-written"),
    # Killed again and again while it recovers an undecided epoch.
    Life("R4.swept", "recovery", "started"),
    Life("R4.aborted", "recovery", "started"),
    Life("R5.go-on", "anywhere"),
    # Decided: redone until done. Killed again and again while it recovers a decided epoch, its sink's commit half-way.
    Life("E4.prepared"),
    Life("R1.begun", "recovery", "prepared"),
    Life("R1.sinks-fenced", "recovery", "prepared"),
    Life("R2.found", "recovery", "prepared"),
    Life("E5.files.gathered-one", "recovery", "prepared"),
    Life("R3.finished", "recovery", "prepared"),
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


def task_points() -> list[str]:
    return [name for name in sorted(all_points()) if name.startswith("T")]


def all_points() -> set[str]:
    """Every point that the engine, its tasks, the state backends and the files sink declare."""
    found = points_of(epochal.engine, epochal.engine.tasks, epochal.backends)
    return {name for name in found if name.split(".")[1] not in OTHER_SINKS}


@dataclass
class Biography:
    """What the lives of the application were like, and the application at the end of them all."""

    application: FaultyApplication
    died: set[Life] = field(default_factory=set)
    failed_tasks: set[str] = field(default_factory=set)
    surprises: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def biography(new_application: NewApplication) -> Biography:
    found = Biography(new_application())
    for life in LIVES:
        _live(found, life)
        found.surprises += [f"after {life}: {problem}" for problem in wrongly_visible(found.application.history)]
    _lose_tasks(found)
    found.application.feed(2)
    found.application.finish()
    return found


def _live(biography: Biography, life: Life) -> None:
    application = biography.application
    application.feed(FILES_AHEAD - application.files_left)
    states = {record.state: record.epoch for record in application.epochs}
    if life.finds is not None and life.finds not in states:
        biography.surprises.append(f"before {life} there is no {life.finds} epoch")
        return
    epoch = None
    if life.where == "first epoch":
        epoch = application.next_epoch
    elif life.finds is not None and life.point.startswith(("E", "R4.swept")):
        epoch = states[life.finds]
    fault = application.fault(life.point, "kill", epoch)
    before = [application.fault(life.raises, "raise", epoch)] if life.raises else []
    driver = application.start(faults=[*before, fault], epochs=FILES_AHEAD)
    if driver.wait() == -9 and application.fired(fault):
        biography.died.add(life)
    else:
        biography.surprises.append(f"{life}: the driver ended otherwise: {driver.log_end()}")


def _lose_tasks(biography: Biography) -> None:
    """One life, whose epochs lose a Python worker each, at one point after the other; Spark runs the task again."""
    application = biography.application
    wanted = task_points()
    application.feed(len(wanted) - application.files_left)
    first = application.next_epoch
    faults = [application.fault(point, "kill", first + number) for number, point in enumerate(wanted)]
    driver = application.start(task_faults=faults, epochs=len(wanted), master="local[2,4]")
    if driver.wait() != 0:
        biography.surprises.append(f"the driver did not survive its tasks: {driver.log_end()}")
    biography.failed_tasks = {fault.point for fault in faults if application.fired(fault)}


@pytest.mark.parametrize("life", LIVES, ids=str)
def test_the_driver_died_there(biography: Biography, life: Life) -> None:
    assert life in biography.died, biography.surprises


@pytest.mark.parametrize("point", task_points())
def test_a_task_died_there(biography: Biography, point: str) -> None:
    assert point in biography.failed_tasks


def test_every_step_has_a_point_and_every_point_was_met(biography: Biography) -> None:
    assert {life.point for life in biography.died} | biography.failed_tasks == all_points()
    assert {point.partition(".")[0] for point in all_points()} == {*STEPS, "abort"}
    assert {point.step for point in vars(points).values() if isinstance(point, FaultPoint)} == {
        step for step in (*STEPS, "abort") if not step.startswith("T")
    }


def test_nothing_undecided_was_ever_visible(biography: Biography) -> None:
    assert biography.surprises == []


def test_state_at_every_epoch_and_output_equal_the_oracle_and_nothing_is_left(biography: Biography) -> None:
    application = biography.application
    assert application.files_left == 0
    assert len(application.history.decided) >= len(LIVES) // 2
    assert violations(application.history, application.oracles) == []


def test_every_lost_epoch_says_why(biography: Biography) -> None:
    aborted = [record for record in biography.application.epochs if record.state == "aborted"]
    assert len(aborted) >= 8
    assert {record.failure.type for record in aborted if record.failure} <= {"attempt-lost", "epoch-aborted"}
    assert all(record.failure for record in aborted)


def test_every_epoch_cut_is_complete_and_consistent(biography: Biography) -> None:
    """Definition 3.4.2 over the trace of all source events and the output rows that they produced."""
    history = biography.application.history
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
    assert [problem for epoch, cut in cuts.items() for problem in cut_violations(trace, epoch, cut)] == []


class TestTheChecksThemselves:
    """They find what is wrong, when something is."""

    @pytest.fixture
    def copy(self, biography: Biography, tmp_path: Path) -> FaultyApplication:
        original = biography.application
        shutil.copytree(original.folder, tmp_path / "copy")
        copy = type(original).__new__(type(original))
        copy.__dict__.update(original.__dict__)
        copy.folder = tmp_path / "copy"
        copy.store = SnapshotStore(str(copy.folder / "run" / "store"))
        copy.outputs = {name: copy.folder / "output" / name for name in original.outputs}
        return copy

    def test_a_lost_row(self, copy: FaultyApplication) -> None:
        epoch = visible_epochs(copy.outputs["totals"])[-1]
        next((copy.outputs["totals"] / f"epoch={epoch:010}").glob("*.parquet")).unlink()
        assert any("sink totals" in problem for problem in violations(copy.history, copy.oracles))

    def test_a_row_twice(self, copy: FaultyApplication) -> None:
        first, second = visible_epochs(copy.outputs["streaks"])[:2]
        source = next((copy.outputs["streaks"] / f"epoch={first:010}").glob("*.parquet"))
        shutil.copy(source, copy.outputs["streaks"] / f"epoch={second:010}")
        assert any(f"sink streaks, epoch {second}" in problem for problem in violations(copy.history, copy.oracles))

    def test_an_epoch_that_was_never_decided(self, copy: FaultyApplication) -> None:
        (copy.outputs["totals"] / "epoch=0000009999").mkdir()
        assert any("9999, which was never decided" in problem for problem in violations(copy.history, copy.oracles))

    def test_a_file_that_nobody_names(self, copy: FaultyApplication) -> None:
        delta = copy.history.snapshots[0][1].deltas[0].file.path
        copy.store.write(f"{delta}-stray", b"")
        (copy.outputs["totals"] / "_staging" / "stray.parquet").write_bytes(b"")
        assert sum("stray" in problem for problem in violations(copy.history, copy.oracles)) == 2

    def test_another_state(self, copy: FaultyApplication) -> None:
        oracles = [replace(copy.oracles[0], step=lambda before, rows: (before or {"events": 1}, ())), copy.oracles[1]]
        assert any("state totals at epoch" in problem for problem in violations(copy.history, oracles))
