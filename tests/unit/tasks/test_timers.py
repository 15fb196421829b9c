"""The timers of one key in one epoch: those that fire, their order, and those that wait."""

from __future__ import annotations

import pytest

from epochal.operators.process.timers import EVENT, PROCESSING, Timer, Timers
from epochal.state.watermarks import END


def fired(timers: Timers, due: list[Timer], *deleted: tuple[int, int, str]) -> list[Timer]:
    timers.begin(0, sorted(due))
    for timer in deleted:
        timers.delete(*timer)
    timers.firing = True
    return list(iter(timers.next, None))


def test_timers_fire_by_domain_time_and_name() -> None:
    due = [(PROCESSING, 1, "a"), (EVENT, 2, "b"), (EVENT, 2, "a"), (EVENT, 1, "z")]
    assert fired(Timers(5, 5), due) == [(EVENT, 1, "z"), (EVENT, 2, "a"), (EVENT, 2, "b"), (PROCESSING, 1, "a")]


def test_a_timer_due_when_it_is_set_fires_after_the_rows() -> None:
    timers = Timers(100, 50)
    timers.begin(0, [(EVENT, 30, "")])
    for time in (100, 20, 30, 101):
        timers.set(EVENT, time, "")
    for time in (50, 51):
        timers.set(PROCESSING, time, "")
    assert list(iter(timers.next, None)) == [(EVENT, 20, ""), (EVENT, 30, ""), (EVENT, 100, ""), (PROCESSING, 50, "")]
    assert timers.writes.puts == {(0, (EVENT, 101, "")): 101, (0, (PROCESSING, 51, "")): 51}


def test_chained_timers_catch_up_in_one_epoch() -> None:
    timers, times = Timers(17, 0), []
    timers.begin(3, [(EVENT, 5, "beat")])
    timers.firing = True
    while (timer := timers.next()) is not None:
        times.append(timer[1])
        timers.set(EVENT, timer[1] + 5, "beat")
    assert times == [5, 10, 15]
    assert timers.writes.puts == {(3, (EVENT, 20, "beat")): 20}


@pytest.mark.parametrize("domain", [EVENT, PROCESSING])
def test_a_timer_set_at_or_before_a_fired_one_is_due_after_the_clock(domain: int) -> None:
    timers = Timers(40, 40)
    timers.begin(0, [(domain, 10, "a"), (domain, 20, "a")])
    timers.firing = True
    fired = []
    while (timer := timers.next()) is not None:
        fired.append(timer[1])
        timers.set(domain, 10, "a")
        timers.set(domain, 20, "b")
    assert fired == [10, 20, 20]
    assert timers.writes.puts == {(0, (domain, 10, "a")): 41, (0, (domain, 20, "b")): 41}


def test_an_event_timer_set_by_a_processing_timer_fires_before_the_next_one() -> None:
    timers, fired = Timers(40, 40), []
    timers.begin(0, [(PROCESSING, 1, ""), (PROCESSING, 2, "")])
    while (timer := timers.next()) is not None:
        fired.append(timer)
        if timer == (PROCESSING, 1, ""):
            timers.set(PROCESSING, 2, "")
            timers.set(EVENT, 3, "")
    assert fired == [(PROCESSING, 1, ""), (EVENT, 3, ""), (PROCESSING, 2, "")]


def test_deleted_timers_do_not_fire() -> None:
    timers = Timers(10, 10)
    assert fired(timers, [(EVENT, 5, ""), (EVENT, 6, "")], (EVENT, 5, ""), (EVENT, 11, "x")) == [(EVENT, 6, "")]
    assert timers.writes.deletes == {(0, (EVENT, 11, "x"))}
    timers.begin_chunk()
    timers.begin(1, [(EVENT, 5, "")])
    timers.delete(EVENT, 5, "")
    timers.set(EVENT, 5, "")
    timers.set(EVENT, 11, "x")
    timers.delete(EVENT, 11, "x")
    timers.delete(EVENT, 12, "x")
    timers.set(EVENT, 12, "x")
    assert list(iter(timers.next, None)) == [(EVENT, 5, "")]
    assert timers.writes.puts == {(1, (EVENT, 12, "x")): 12}
    assert timers.writes.deletes == {(1, (EVENT, 11, "x"))}
    timers.delete(EVENT, 4, "")
    timers.set(EVENT, 4, "")
    timers.delete(EVENT, 4, "")
    assert (1, (EVENT, 4, "")) not in timers.writes.puts


def test_timers_set_by_timers_at_the_end_of_the_input_are_dropped() -> None:
    timers = Timers(END, 100)
    timers.begin(0, [])
    timers.set(EVENT, 7, "")
    timers.set(PROCESSING, 101, "")
    timers.firing = True
    assert timers.next() == (EVENT, 7, "")
    timers.set(EVENT, 8, "")
    assert timers.next() is None
    timers.set(EVENT, 8, "")
    assert timers.writes.dropped == {(0, (EVENT, 8, ""))}
    timers.begin(1, [(EVENT, 7, ""), (EVENT, 9, "")])
    assert timers.next() == (EVENT, 7, "")
    timers.firing = True
    timers.set(EVENT, 9, "")  # waits and fires
    timers.set(EVENT, 10, "")
    timers.delete(EVENT, 10, "")
    assert timers.next() == (EVENT, 9, "")
    assert timers.writes.dropped == {(0, (EVENT, 8, ""))}
    assert timers.writes.puts == {(0, (PROCESSING, 101, "")): 101}
    timers.firing = False  # rows are processed after earlier timers
    timers.set(EVENT, 8, "late")
    assert timers.writes.dropped == {(0, (EVENT, 8, "")), (1, (EVENT, 8, "late"))}
    draining = Timers(END, 100, draining=True)
    draining.begin(0, [])
    draining.set(PROCESSING, 101, "")
    assert (len(draining.writes.dropped), draining.writes.puts) == (1, {})
