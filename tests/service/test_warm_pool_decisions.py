"""Decisions of warm pools: the workers to start, to retain and to retire, and pauses between starts."""

from __future__ import annotations

import pytest

from epochal.service.runtime.warm_pool import (
    Member,
    PoolTimes,
    StartSchedule,
    decide,
    target_keys,
)

TIMES = PoolTimes(quiet=0, busy=0, pause=0, answer=30)


def members(*keys: str, age: float = 1.0, ready: bool = True) -> list[Member[str]]:
    return [Member(key, age, ready) for key in keys]


def test_slots_are_shared_by_the_most_recently_requested_keys() -> None:
    assert target_keys([], "usual", 2) == ["usual", "usual"]
    assert target_keys(["a", "b"], "usual", 3) == ["a", "b", "a"]
    assert target_keys(["a"], "usual", 0) == []


def test_missing_worker_is_started_and_surplus_one_retired() -> None:
    assert decide([], ["a"], TIMES).start == "a"
    assert decide(members("a"), ["a", "b"], TIMES).start == "b"
    assert decide(members("a", "b"), ["b", "a"], TIMES) == decide([], [], TIMES)
    replaced = decide(members("a", "a"), ["b", "a"], TIMES)
    assert (set(replaced.retired), replaced.start) == ({1}, "b")


def test_ready_and_older_workers_are_retained() -> None:
    unready, young, old = Member("a", 9.0, False), Member("a", 1.0, True), Member("a", 5.0, True)
    assert set(decide([unready, young, old], ["a"], TIMES).retired) == {0, 1}


def test_workers_are_retired_by_age_and_if_they_are_not_ready_in_time() -> None:
    times = PoolTimes(retired=100, ready=10)
    found = decide(
        [*members("a", age=100), *members("a", age=11, ready=False), *members("a", age=99)], ["a"] * 3, times
    )
    assert found.retired == {0: "has reached its maximum age", 1: "is not ready in time"}
    assert found.start == "a"


def test_no_worker_is_started_while_the_machine_works_on_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now, quiet = [1000.0], [False]
    monkeypatch.setattr("epochal.service.runtime.warm_pool.steady_seconds", lambda: now[0])
    schedule = StartSchedule(PoolTimes(quiet=5, busy=30, pause=2), lambda: quiet[0])
    for seconds, is_quiet, may_start in ((4, True, False), (5, True, True), (6, False, False), (30, False, True)):
        now[0], quiet[0] = 1000.0 + seconds, is_quiet
        assert schedule.may_start() is may_start, seconds


def test_pause_doubles_until_a_worker_becomes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("epochal.service.runtime.warm_pool.steady_seconds", lambda: now[0])
    schedule = StartSchedule(PoolTimes(quiet=0, busy=0, pause=2), lambda: True, immediately=True)

    def pause() -> float:
        schedule.started()
        began = now[0]
        while not schedule.may_start():
            now[0] += 1
        return now[0] - began

    assert [pause(), pause(), pause()] == [2, 4, 8]
    schedule.became_ready()
    assert pause() == 2
