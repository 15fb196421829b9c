"""Whole processes: a JVM that dies under its driver, and zombies that are stopped and continued after their
successor."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import violations, visible_epochs
from tests.service.fault.faulty_application import stopping_fault, wait_until_stopped_at

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UNDECIDED = ("E2.ran", "E4.manifest-written")
DECIDED = ("E1.slices-chosen", "E4.prepared")
"""The zombie may have no epoch yet: the successor takes its number."""
IN_THE_BACKGROUND = ("E5.files.gathered-one", "E6.before-publish")
"""With Spark, commits run in their own thread, so only the whole process can be stopped there, from outside."""
ALL = (*UNDECIDED, *DECIDED, *IN_THE_BACKGROUND)


@pytest.mark.long
def test_killed_jvm_ends_the_attempt_and_the_next_one_continues(new_application: NewApplication) -> None:
    """The kernel kills the JVM for lack of memory: the driver survives, and cannot run another epoch."""
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
def test_zombie_without_spark_is_fenced_and_changes_nothing(local: FaultyApplication, point: str) -> None:
    check_zombie(local, point, None)


@pytest.mark.long
@pytest.mark.parametrize("point", ALL)
def test_zombie_with_spark_is_fenced_and_changes_nothing(
    new_application: NewApplication, zombie_jvm: SparkJvm, point: str
) -> None:
    application = new_application(compact_after_epochs=1000)
    application.feed(4)
    check_zombie(application, point, zombie_jvm)


def check_zombie(application: FaultyApplication, point: str, jvm: SparkJvm | None) -> None:
    epoch = application.next_epoch
    pause = stopping_fault(application, point, epoch, jvm if point in IN_THE_BACKGROUND else None)
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
