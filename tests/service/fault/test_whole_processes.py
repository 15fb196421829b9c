"""Whole processes: a JVM that dies under its driver, and zombies: stopped, and continued after their successor."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import violations, visible_epochs
from tests.service.fault.faulty_application import stopped_at, wait_until_stopped_at

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UNDECIDED = ("E2.ran", "E4.manifest-written")
DECIDED = ("E1.slices-chosen", "E4.prepared")
"""Also where the zombie has no epoch yet: the successor takes its number."""
IN_THE_BACKGROUND = ("E5.files.gathered-one", "E6.before-publish")
"""With Spark, in the thread of the commits: only the whole process can be stopped there, from outside."""
ALL = (*UNDECIDED, *DECIDED, *IN_THE_BACKGROUND)


@pytest.mark.long
def test_a_jvm_that_dies_ends_the_attempt_and_the_next_one_goes_on(new_application: NewApplication) -> None:
    """As the kernel ends it for want of memory: the driver stays, and cannot run another epoch."""
    application = new_application(tolerable_failed_epochs=1000)
    application.feed(3)
    slow = application.fault("T3.pre-committed", "delay", epoch=2, seconds=600)
    driver = application.start(task_faults=[slow], epochs=3, jvm=None)
    driver.wait_until(lambda: application.fired(slow))
    (jvm,) = (child for child in driver.children() if Path(f"/proc/{child}/comm").read_text().strip() == "java")
    os.kill(jvm, signal.SIGKILL)
    assert driver.wait() == 1, driver.log_end()

    failed = application.epochs[-1]
    assert failed.state == "aborted"
    assert failed.failure is not None
    assert failed.failure.type == "spark-lost"
    application.finish()
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []


@pytest.mark.parametrize("point", ALL)
def test_a_zombie_without_spark_is_fenced_and_leaves_nothing(local: FaultyApplication, point: str) -> None:
    haunt(local, point, None)


@pytest.mark.long
@pytest.mark.parametrize("point", ALL)
def test_a_zombie_is_fenced_and_leaves_nothing(
    new_application: NewApplication, zombie_jvm: SparkJvm, point: str
) -> None:
    application = new_application(compact_after_epochs=1000)
    application.feed(4)
    haunt(application, point, zombie_jvm)


def haunt(application: FaultyApplication, point: str, jvm: SparkJvm | None) -> None:
    epoch = application.next_epoch
    pause = stopped_at(application, point, epoch, jvm if point in IN_THE_BACKGROUND else None)
    zombie = application.start(faults=[pause], jvm=jvm)
    wait_until_stopped_at(zombie, application, pause)

    successor = application.start(epochs=1)
    assert successor.wait() == 0, successor.log_end()
    decided = {record.epoch: record.manifest for record in application.history.decided}
    shown = {name: visible_epochs(folder) for name, folder in application.outputs.items()}

    zombie.send(signal.SIGCONT)
    assert zombie.wait() not in (0, -signal.SIGKILL)
    assert "Fenced" in zombie.log_end()
    assert {record.epoch: record.manifest for record in application.history.decided} == decided
    assert {name: visible_epochs(folder) for name, folder in application.outputs.items()} == shown
    assert (epoch in decided) == (point not in UNDECIDED)
    assert violations(application.history, application.oracles) == []
