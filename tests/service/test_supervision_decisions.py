"""Decisions of supervision, case by case. They are pure functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from epochal.contracts.catalog import Failure
from epochal.service.domain.executions import SupervisedAttempt, SupervisedExecution
from epochal.service.domain.supervision import (
    Decision,
    EndExecution,
    GiveUpAttempt,
    Launch,
    Loss,
    Process,
    SupervisionSettings,
    Wait,
    decide,
)
from epochal.wire.configuration import RestartStrategy

START = datetime(2026, 1, 1, tzinfo=UTC)
CRASH = Failure(type="driver-lost", message="process has terminated")
SETTINGS = SupervisionSettings(lease_seconds=10, start_seconds=60, stop_seconds=30)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def running(started: float = 0, process: str | None = "1@1", begun: bool = True) -> SupervisedAttempt:
    return SupervisedAttempt(1, "running", process, begun, at(started), None, None)


def ended(number: int, when: float, failure: Failure = CRASH) -> SupervisedAttempt:
    return SupervisedAttempt(number, "failed", "1@1", True, at(when - 1), at(when), failure)


def execution(
    *attempts: SupervisedAttempt,
    state: str = "running",
    heartbeat: float | None = None,
    stop_requested: float | None = None,
    restart: RestartStrategy | None = None,
) -> SupervisedExecution:
    return SupervisedExecution(
        id="e1",
        application="flights",
        state=state,  # type: ignore[arg-type]
        restart=restart or RestartStrategy(max_restarts=2, window_seconds=100, backoff_seconds=1),
        heartbeat_at=None if heartbeat is None else at(heartbeat),
        stop_requested_at=None if stop_requested is None else at(stop_requested),
        attempts=attempts,
    )


def decision(
    subject: SupervisedExecution,
    now: float,
    process: Process = Process.ALIVE,
    listening: float = 0,
    settings: SupervisionSettings = SETTINGS,
) -> Decision:
    return decide(subject, process, at(now), at(listening), settings)


def test_first_attempt_is_launched_immediately() -> None:
    assert decision(execution(state="starting"), 0, Process.UNKNOWN) == Launch()


def test_driver_with_recent_heartbeat_is_left_running() -> None:
    assert decision(execution(running(), heartbeat=95), 100) == Wait()


def test_driver_is_lost_after_its_heartbeat_timeout() -> None:
    subject = execution(running(), heartbeat=89)
    assert decision(subject, 100) == GiveUpAttempt(subject.attempts[0], Loss.NOT_HEARD, kill=True)


def test_lost_driver_is_not_killed_if_the_setting_disables_it() -> None:
    spare = SETTINGS.model_copy(update={"kill_lost_drivers": False})
    given_up = decision(execution(running(), heartbeat=89), 100, settings=spare)
    assert isinstance(given_up, GiveUpAttempt) and not given_up.kill


def test_missing_heartbeats_before_listening_began_do_not_count() -> None:
    subject = execution(running(), heartbeat=10)
    assert decision(subject, 100, listening=95) == Wait()
    assert isinstance(decision(subject, 106, listening=95), GiveUpAttempt)


def test_new_driver_has_a_longer_timeout_for_its_first_heartbeat() -> None:
    subject = execution(running(started=0), state="starting", heartbeat=None)
    assert decision(subject, 59) == Wait()
    assert decision(subject, 61) == GiveUpAttempt(subject.attempts[0], Loss.NEVER_HEARD, kill=True)


def test_heartbeats_of_an_earlier_attempt_do_not_count() -> None:
    subject = execution(ended(1, 10), running(started=50), heartbeat=9)
    assert decision(subject, 100) == Wait()
    assert isinstance(decision(subject, 111), GiveUpAttempt)


def test_unrecorded_process_has_one_heartbeat_timeout() -> None:
    subject = execution(running(started=0, process=None), heartbeat=None)
    assert decision(subject, 9, Process.UNKNOWN) == Wait()
    assert decision(subject, 11, Process.UNKNOWN) == GiveUpAttempt(subject.attempts[0], Loss.NEVER_HEARD, kill=True)


@pytest.mark.parametrize("state", ["starting", "running", "stopping"])
def test_terminated_process_is_given_up_immediately(state: str) -> None:
    subject = execution(running(), state=state, heartbeat=99)
    assert decision(subject, 100, Process.GONE) == GiveUpAttempt(subject.attempts[0], Loss.GONE, kill=True)


def test_failed_attempt_is_restarted_after_a_doubling_pause() -> None:
    once = execution(ended(1, 10))
    assert decision(once, 10.5, Process.GONE) == Wait(0.5)
    assert decision(once, 11, Process.GONE) == Launch()
    twice = execution(ended(1, 10), ended(2, 20))
    assert decision(twice, 21.5, Process.GONE) == Wait(0.5)
    assert decision(twice, 22, Process.GONE) == Launch()


def test_pause_between_restarts_has_a_limit() -> None:
    strategy = RestartStrategy(max_restarts=50, window_seconds=1000, backoff_seconds=1, backoff_limit_seconds=5)
    many = [ended(number, number * 10) for number in range(1, 21)]
    assert decision(execution(*many, restart=strategy), 205, Process.GONE) == Launch()


def test_too_many_failures_within_the_window_end_the_execution() -> None:
    last = Failure(type="source-error", message="no folder")
    subject = execution(ended(1, 10), ended(2, 20), ended(3, 30, last))
    assert decision(subject, 31, Process.GONE) == EndExecution(failed=True, failure=last)


def test_failures_before_the_window_do_not_count() -> None:
    subject = execution(ended(1, 10), ended(2, 20), ended(3, 200))
    assert decision(subject, 201, Process.GONE) == Launch()


@pytest.mark.parametrize(
    "slug",
    [
        "invalid-pipeline",
        "invalid-schema",
        "invalid-parameters",
        "invalid-artifact",
        "environment",
        "author-error",
        "malformed-record",
        "file-missing",
    ],
)
def test_permanent_failures_are_not_retried(slug: str) -> None:
    failure = Failure(type=slug, message="correct me")
    assert decision(execution(ended(1, 10, failure)), 11, Process.GONE) == EndExecution(failed=True, failure=failure)


@pytest.mark.parametrize(
    "slug",
    [
        "author-error-transient",
        "source-error",
        "sink-unavailable",
        "epoch-timeout",
        "epoch-aborted",
        "spark-lost",
        "unknown-kind",
    ],
)
def test_temporary_failures_are_retried(slug: str) -> None:
    failure = Failure(type=slug, message="perhaps")
    assert decision(execution(ended(1, 10, failure)), 11, Process.GONE) == Launch()


def test_stopping_without_a_driver_ends_the_execution() -> None:
    assert decision(execution(state="stopping", stop_requested=5), 6, Process.UNKNOWN) == EndExecution(False, None)
    crashed = execution(ended(1, 10), state="stopping", stop_requested=5)
    assert decision(crashed, 11, Process.GONE) == EndExecution(False, CRASH)


def test_driver_that_does_not_stop_is_killed() -> None:
    subject = execution(running(), state="stopping", heartbeat=100, stop_requested=71)
    assert decision(subject, 100) == Wait()
    assert decision(subject, 102) == GiveUpAttempt(subject.attempts[0], Loss.NOT_STOPPED, kill=True)


def test_stopping_driver_that_has_not_begun_is_given_up() -> None:
    subject = execution(running(begun=False), state="stopping", stop_requested=20)
    assert decision(subject, 20) == GiveUpAttempt(subject.attempts[0], Loss.NOT_BEGUN, kill=True)
    assert decision(execution(running(begun=False), state="starting"), 20) == Wait()
    assert decision(execution(running(), state="stopping", stop_requested=20), 20) == Wait()


def test_successor_has_one_timeout_to_finish_prepared_epochs() -> None:
    subject = execution(ended(1, 10), running(started=12, begun=False), state="stopping", stop_requested=20)
    assert decision(subject, 29) == Wait()
    assert decision(subject, 30) == GiveUpAttempt(subject.attempts[1], Loss.NOT_BEGUN, kill=True)
