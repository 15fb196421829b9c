"""Real drivers, as ``epochal run`` starts them, are killed one after another in one history, which must be correct
at the end.

Every run kills a driver before the decision, with all its processes, and two drivers after it; the run of all tests
kills one at every point. ``test_kills.py`` tests each point separately, without Spark. All lives but one share a JVM
(see ``epochal.testing.drivers``), which makes the number of lives affordable; that one is killed with its JVM and its
Python workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from epochal.testing.invariants import wrongly_visible
from tests.service.fault.test_kills import LIVES, Life, check_the_end, task_points

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow]

SAMPLE = (
    Life("E4.prepared"),
    Life("E5.files.gathered-one", "recovery", "prepared"),
)
"""A decided epoch, and a partial commit during recovery. The undecided epoch is that of the killed processes."""
LOST_TASKS = ("T2.processed", "T3.pre-committed")


@pytest.mark.timeout(600)
@pytest.mark.alternating(3)
def test_driver_is_killed_at_one_fault_point_of_each_kind(new_application: NewApplication) -> None:
    live(new_application(compact_after_epochs=3), SAMPLE, LOST_TASKS, ahead=2)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_driver_is_killed_at_every_fault_point(new_application: NewApplication) -> None:
    application = new_application(compact_after_epochs=6)
    live(application, LIVES, task_points(), ahead=10)
    assert len(application.history.decided) >= len(LIVES) // 2


def live(application: FaultyApplication, lives: Sequence[Life], lost_tasks: Sequence[str], ahead: int) -> None:
    """``ahead``: number of input files, one an epoch, that each life finds; a life that compacts needs several."""
    for life in lives:
        _live(application, life, ahead)
    _kill_all_processes(application)
    _lose_tasks_and_finish(application, lost_tasks)
    check_the_end(application)


def _live(application: FaultyApplication, life: Life, ahead: int) -> None:
    application.feed(ahead - application.files_left)
    states = {record.state: record.epoch for record in application.epochs}
    epoch = None
    if life.where == "first epoch":
        epoch = application.next_epoch
    elif life.finds is not None:
        assert life.finds in states, f"no {life.finds} epoch before {life}"
        epoch = states[life.finds] if life.point.startswith(("E", "R4.swept")) else None
    raising = [application.fault(life.raises, "raise", epoch)] if life.raises else []
    application.kill_at(application.fault(life.point, "kill", epoch), before=raising, epochs=ahead)


def _kill_all_processes(application: FaultyApplication) -> None:
    """Kill all processes during a job, when some tasks have pre-committed and others have not."""
    application.feed(max(0, 1 - application.files_left))
    slow = application.fault("T3.pre-committed", "delay", epoch=application.next_epoch, seconds=600)
    driver = application.start(task_faults=[slow], epochs=1, jvm=None)
    driver.wait_until(lambda: application.fired(slow))
    driver.kill()
    assert application.epochs[-1].state == "started"
    assert wrongly_visible(application.history) == []


def _lose_tasks_and_finish(application: FaultyApplication, lost: Sequence[str]) -> None:
    """Run the last life to the end of the input. Its first epochs lose a Python worker each, at one point after
    another, and Spark runs the task again; at least two epochs lose none."""
    application.feed(max(0, len(lost) + 2 - application.files_left))
    first = application.next_epoch
    faults = [application.fault(point, "kill", first + number) for number, point in enumerate(lost)]
    application.finish(task_faults=faults, master="local[2,4]")
    assert [fault.point for fault in faults if not application.fired(fault)] == []
