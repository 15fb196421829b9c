"""Errors of the author's code and of its environment: exceptions, slow tasks, an unavailable sink."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.invariants import violations, visible_epochs

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RAISES = -1


@pytest.mark.long  # its message, on Spark: unit/tasks/test_failures.py; the attempt: unit/test_engine_loop.py
def test_exception_of_the_author_ends_the_attempt(
    new_application: NewApplication,
) -> None:
    application = new_application()
    application.feed(1)
    application.feed_rows([{"event": 1000, "sensor": "s1", "value": RAISES}])
    driver = application.start()
    assert driver.wait() == 1

    assert [record.state for record in application.epochs] == ["committed", "aborted"]
    for record in application.epochs[1:]:
        failure = record.failure
        assert failure is not None
        assert failure.type == "author-error"
        assert "Operator 'streaks', key (sensor='s1')" in failure.message
        assert "LookupError: no sensor can read -1" in failure.message
        assert failure.traceback is not None
        assert failure.traceback.splitlines()[-1] == "LookupError: no sensor can read -1"
        frames = [line for line in failure.traceback.splitlines() if line.startswith("  File ")]
        assert len(frames) == 1
        assert "application.py" in frames[0]
        assert "in process" in frames[0]
    assert "no sensor can read -1" in driver.log_end()

    application.feed(1)
    application.finish(parameters={"raises": "false"})
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []


@pytest.mark.long  # cancelled jobs: unit/test_compaction.py; the next epoch: unit/test_engine_loop.py
def test_slow_epoch_is_cancelled_and_the_next_one_runs(new_application: NewApplication) -> None:
    application = new_application(epoch_timeout_seconds=15, tolerable_failed_epochs=10)
    application.feed(3)
    slow = application.fault("T2.processed", "delay", epoch=2, seconds=120)
    driver = application.start(task_faults=[slow], epochs=3)
    assert driver.wait() == 0, driver.log_end()
    failure = application.epochs[1].failure
    assert failure is not None
    assert failure.type == "epoch-timeout"
    assert "15 s (epoch_timeout_seconds)" in failure.message
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []


@pytest.mark.long
def test_blocked_sink_holds_epochs_back_until_it_commits(new_application: NewApplication) -> None:
    application = new_application(max_uncommitted_epochs=2)
    application.feed(1)
    application.finish()
    blocked = application.next_epoch
    obstacle = obstruct(application, blocked)

    application.feed(5)
    driver = application.start(epochs=5)
    driver.wait_until(lambda: len(in_state(application, "prepared")) == 2)
    driver.wait_until(lambda: application.status.phase == "waiting")
    detail = application.status.detail
    assert detail is not None
    assert detail.startswith("waiting for sink totals since 20")
    assert str(obstacle) in detail
    # The other sink continues on its own; no further epoch is opened.
    driver.wait_until(lambda: visible_epochs(application.outputs["streaks"])[-1] == blocked + 1)
    assert in_state(application, "prepared") == [blocked, blocked + 1]
    assert in_state(application, "started") == []

    obstacle.unlink()
    assert driver.wait() == 0, driver.log_end()
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []


def in_state(application: FaultyApplication, state: str) -> list[int]:
    return [record.epoch for record in application.epochs if record.state == state]


def obstruct(application: FaultyApplication, epoch: int) -> Path:
    """Create a file at the path where the sink gathers the files of the epoch: tasks can stage, but the driver
    cannot commit."""
    branch = application.epochs[0].branch
    obstacle = application.outputs["totals"] / "_staging" / branch / f"e{epoch:010}"
    obstacle.touch()
    return obstacle
