"""The library for background services: life cycle, errors, attempts, file locks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.background.locks import FileLock
from epochal.background.retries import Attempt, Backoff, attempts
from epochal.background.service import BackgroundService
from epochal.background.task import BackgroundTask
from epochal.background.worker import BackgroundWorker
from epochal.errors import CatalogUnavailable
from tests.kit.waiting import eventually


class SimulatedTime:
    """Replaces the wait between steps: records each pause, and stops the service after a number of pauses."""

    def __init__(self, pauses: int) -> None:
        self.pauses: list[float | None] = []
        self.service: BackgroundService | None = None
        self._limit = pauses

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self._limit:
            assert self.service is not None
            self.service.stop()


def pauses_of(
    step: Callable[[], float | None], interval: float | None, count: int, delay: float = 0.0
) -> list[float | None]:
    time = SimulatedTime(count)
    service = time.service = BackgroundService("simulated", step, interval, delay=delay, wait=time.wait)
    service.start()
    assert service._thread.join(10) is None and not service.health.running
    return time.pauses


def failing(*outcomes: Exception | float | None) -> Callable[[], float | None]:
    left = list(outcomes)

    def step() -> float | None:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return step


def test_a_service_pauses_for_its_interval_or_for_the_result_of_its_step() -> None:
    assert pauses_of(failing(None, 7.0, None), 3.0, 3) == [3.0, 7.0, 3.0]


def test_a_service_waits_for_its_delay_before_the_first_step() -> None:
    assert pauses_of(failing(None), 3.0, 2, delay=9.0) == [9.0, 3.0]


def test_a_service_without_interval_waits_until_it_is_woken() -> None:
    assert pauses_of(failing(None), None, 1) == [None]


def test_pauses_double_after_failures_and_reset_after_a_success() -> None:
    away = [CatalogUnavailable() for _ in range(4)]
    assert pauses_of(failing(*away, None, CatalogUnavailable()), 1.0, 6) == [1.0, 2.0, 4.0, 5.0, 1.0, 1.0]


def test_a_longer_interval_is_kept_between_failures() -> None:
    assert pauses_of(failing(CatalogUnavailable(), CatalogUnavailable()), 60.0, 2) == [60.0, 60.0]


def test_an_expected_error_is_logged_once_and_a_defect_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "epochal.background")
    pauses_of(
        failing(CatalogUnavailable("away"), CatalogUnavailable("away"), KeyError("x"), KeyError("x"), None), 1.0, 5
    )
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("WARNING", False),
        ("ERROR", True),
        ("ERROR", True),
        ("INFO", False),
    ]
    assert caplog.messages[0] == "simulated failed, and is repeated in 1.0 s: away"
    assert caplog.messages[-1] == "simulated works again after 4 failures"


def test_health_reports_failures_since_the_last_success() -> None:
    failed, mended = threading.Event(), threading.Event()

    def step() -> float | None:
        if not mended.is_set():
            failed.set()
            raise CatalogUnavailable("away")
        return None

    with BackgroundService("sick", step, None) as service:
        assert failed.wait(10)
        eventually(lambda: service.health.error == "CatalogUnavailable: away" and service.health.failures > 0)
        mended.set()
        service.wake()
        eventually(lambda: service.health.failures == 0)
        assert service.health.running and service.health.error is None
    assert not service.health.running


def test_a_wake_during_a_step_runs_another_step() -> None:
    entered, proceed, steps = threading.Semaphore(0), threading.Semaphore(0), []

    def step() -> None:
        entered.release()
        assert proceed.acquire(timeout=10)
        steps.append(1)

    with BackgroundService("woken", step, None) as service:
        assert entered.acquire(timeout=10)
        service.wake()
        proceed.release()
        assert entered.acquire(timeout=10)  # the second step, without a second wake
        proceed.release()
        eventually(lambda: len(steps) == 2)


def test_stop_interrupts_a_blocking_step_and_is_idempotent() -> None:
    blocked, interrupted = threading.Event(), threading.Event()

    def step() -> None:
        blocked.set()
        assert interrupted.wait(10)

    service = BackgroundService("blocked", step, 1.0, wake=interrupted.set)
    service.start()
    assert blocked.wait(10)
    assert service.stop()
    assert service.stop()
    assert service.stopping


def test_stop_reports_a_step_that_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    blocked, end = threading.Event(), threading.Event()

    def step() -> None:
        blocked.set()
        end.wait(10)

    service = BackgroundService("stuck", step, 1.0)
    service.start()
    assert blocked.wait(10)
    assert not service.stop(timeout=0.01)
    assert caplog.messages == ["stuck did not stop within 0.01 s"]
    end.set()
    assert service.stop()


def test_a_service_that_was_stopped_before_its_start_runs_no_step() -> None:
    service = BackgroundService("never", lambda: pytest.fail("a step ran"), 0.0)
    assert service.stop()
    service.start()
    eventually(lambda: not service.health.running)


def test_a_step_may_stop_its_service() -> None:
    def step() -> None:
        service.stop()

    service = BackgroundService("last", step, 0.0)
    service.start()
    eventually(lambda: not service._thread.is_alive())


def test_a_task_returns_its_result_or_raises_its_error(caplog: pytest.LogCaptureFixture) -> None:
    assert BackgroundTask("sum", lambda: 3).result(10) == 3
    with pytest.raises(ValueError, match="no"):
        BackgroundTask("no", failing(ValueError("no")), raises=True).result(10)
    assert not caplog.messages
    assert BackgroundTask("logged", failing(CatalogUnavailable("away"))).wait(10)
    assert caplog.messages == ["logged failed: away"]


def test_the_result_of_a_task_under_way_times_out() -> None:
    end = threading.Event()
    task = BackgroundTask("long", lambda: end.wait(10))
    with pytest.raises(TimeoutError):
        task.result(0.01)
    end.set()
    assert task.result(10)


def test_a_worker_does_one_piece_of_work_at_a_time_and_survives_failures(caplog: pytest.LogCaptureFixture) -> None:
    end = threading.Event()
    worker = BackgroundWorker("worker")
    assert worker.begin(lambda: end.wait(10) or None)
    assert not worker.begin(lambda: None)
    end.set()
    assert worker.wait(10)
    assert worker.begin(lambda: failing(CatalogUnavailable("away"))() and None)
    assert worker.wait(10)
    assert caplog.messages == ["worker failed: away"]
    done = threading.Event()
    assert worker.begin(done.set)
    assert done.wait(10)
    assert worker.stop(10)
    assert not worker.begin(lambda: None)


def test_a_worker_without_work_stops() -> None:
    assert BackgroundWorker("idle").stop(10)


def test_attempts_end_at_the_limit() -> None:
    slept: list[float] = []
    made = list(attempts(Backoff(1.0, 3.0), limit=4, sleep=slept.append, clock=lambda: 0.0))
    assert made == [Attempt(1, False), Attempt(2, False), Attempt(3, False), Attempt(4, True)]
    assert slept == [1.0, 2.0, 3.0]


def test_the_last_attempt_begins_at_the_timeout() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    moments = [(now[0], each.is_last) for each in attempts(0.4, timeout=1.0, sleep=sleep, clock=lambda: now[0])]
    assert [round(moment, 3) for moment, _ in moments] == [0.0, 0.4, 0.8, 1.0]
    assert [is_last for _, is_last in moments] == [False, False, False, True]


def test_attempts_end_when_the_wait_between_them_is_interrupted() -> None:
    assert len(list(attempts(1.0, sleep=lambda seconds: True))) == 1


def test_a_file_lock_excludes_other_holders_and_leaves_the_content(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("content")
    first = FileLock.acquire(path)
    assert first is not None
    assert FileLock.acquire(path) is None
    first.release()
    with FileLock.acquire(path) or pytest.fail("the lock was not released"):
        assert path.read_text() == "content"


def test_a_file_lock_waits_for_its_holder(tmp_path: Path) -> None:
    held = FileLock.acquire(tmp_path / "lock")
    assert held is not None
    waiting = BackgroundTask("waiting", lambda: FileLock.acquire(tmp_path / "lock", wait=True))
    assert not waiting.wait(0.05)
    held.release()
    lock = waiting.result(10)
    assert lock is not None
    lock.release()


def test_a_child_that_inherits_the_descriptor_keeps_the_lock(tmp_path: Path) -> None:
    lock = FileLock.acquire(tmp_path / "lock")
    assert lock is not None
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.descriptor]) as child:
        lock.release()
        assert FileLock.acquire(tmp_path / "lock") is None
        child.communicate(b"")
    held = FileLock.acquire(tmp_path / "lock")
    assert held is not None
    held.release()


def test_a_child_inherits_a_lock_only_with_its_descriptor(tmp_path: Path) -> None:
    lock = FileLock.acquire(tmp_path / "lock")
    assert lock is not None
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        # The kernel closes the child's copy a moment after Popen has returned.
        held = FileLock.acquire(tmp_path / "lock", wait=True)
        assert held is not None
        held.release()
        child.communicate(b"")


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from epochal.background.locks import FileLock; "
        "lock = FileLock.acquire(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert FileLock.acquire(tmp_path / "lock") is None
        holder.kill()
    held = FileLock.acquire(tmp_path / "lock")
    assert held is not None
    held.release()
