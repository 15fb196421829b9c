"""Whole processes: a driver that takes its JVM with it, and zombies: stopped, and continued after their successor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import violations, visible_epochs
from tests.fault.conftest import stop_without_the_lock

if TYPE_CHECKING:
    from tests.fault.conftest import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UNDECIDED = ("E2.ran", "E4.manifest-written")
DECIDED = ("E1.slices-chosen", "E4.prepared")
"""Also where the zombie has no epoch yet: the successor takes its number."""
IN_THE_BACKGROUND = ("E5.files.gathered-one", "E6.before-publish")


def test_a_driver_killed_with_all_its_processes_in_the_middle_of_a_job(new_application: NewApplication) -> None:
    """Driver, JVM and Python workers die together while tasks have pre-committed and others have not."""
    application = new_application()
    application.feed(3)
    slow = application.fault("T3.pre-committed", "delay", epoch=2, seconds=600)
    driver = application.start(task_faults=[slow], epochs=3, jvm=None)
    driver.wait_until(lambda: application.fired(slow))
    driver.kill()
    assert [record.state for record in application.epochs][-1] == "started"
    application.finish()
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []


@pytest.fixture(scope="module")
def zombie_jvm() -> Iterator[SparkJvm]:
    """Of the zombies: their successors have the other one, at the same time."""
    with SparkJvm() as running:
        yield running


@pytest.fixture(scope="module")
def haunted(new_application: NewApplication) -> FaultyApplication:
    return new_application(compact_after_epochs=1000)


SAMPLED = ("E4.manifest-written", "E4.prepared", "E5.files.gathered-one")
"""One of each kind; the others in the run of all tests."""


@pytest.mark.parametrize(
    "point",
    [
        point if point in SAMPLED else pytest.param(point, marks=pytest.mark.long)
        for point in (*UNDECIDED, *DECIDED, *IN_THE_BACKGROUND)
    ],
)
def test_a_zombie_is_fenced_and_leaves_nothing(haunted: FaultyApplication, zombie_jvm: SparkJvm, point: str) -> None:
    haunted.feed(4)
    epoch = haunted.next_epoch
    if point in IN_THE_BACKGROUND:
        # Commits sleep, the process is stopped from outside; they go on when it is continued.
        pause = haunted.fault(point, "delay", epoch, seconds=10)
    else:
        pause = haunted.fault(point, "stop", epoch)
    zombie = haunted.start(faults=[pause], jvm=zombie_jvm)
    zombie.wait_until(lambda: haunted.fired(pause))
    if point in IN_THE_BACKGROUND:
        stop_without_the_lock(zombie, haunted)
    zombie.wait_until_stopped()

    successor = haunted.start(epochs=1)
    assert successor.wait() == 0, successor.log_end()
    decided = {record.epoch: record.manifest for record in haunted.history.decided}
    shown = {name: visible_epochs(folder) for name, folder in haunted.outputs.items()}

    zombie.send(signal.SIGCONT)
    assert zombie.wait() not in (0, -signal.SIGKILL)
    assert "Fenced" in zombie.log_end()
    assert {record.epoch: record.manifest for record in haunted.history.decided} == decided
    assert {name: visible_epochs(folder) for name, folder in haunted.outputs.items()} == shown
    assert (epoch in decided) == (point not in UNDECIDED)
    assert violations(haunted.history, haunted.oracles) == []
