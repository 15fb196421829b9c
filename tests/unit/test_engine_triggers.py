"""The next step of the epoch loop, and the due times that it depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.contracts.conditions import BEGINNING, Clock, Due, PartitionClock, Trigger, Watermarks
from epochal.engine.triggers import POLL_SECONDS, Decision, NextDue, Situation, Step, decide, left_over, next_due
from epochal.state.watermarks import WHOLE, Declaration, TimedOperator, TimeGraph

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
NOON = 20_454 * DAY + 12 * HOUR
AT_REST = Situation(has_room=True, ended=False, until_interval=0.0, until_due=None, in_flight=False, has_input=False)
ASK, WAIT, END = Decision(Step.ASK_SOURCES), Decision(Step.WAIT_FOR_COMMITS), Decision(Step.END)


def opened(*triggers: Trigger) -> Decision:
    return Decision(Step.OPEN, triggers)


def pause(seconds: float) -> Decision:
    return Decision(Step.PAUSE, seconds=seconds)


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, pause(POLL_SECONDS)),
        ({"has_input": None}, ASK),
        ({"has_input": True}, opened("input")),
        ({"until_due": 0.0}, opened("due")),
        ({"until_due": 0.01}, pause(0.01)),
        ({"until_due": 60.0}, pause(POLL_SECONDS)),
        ({"in_flight": True}, opened("in_flight")),
        ({"commanded": True}, opened("command")),
        ({"hurried": True}, pause(POLL_SECONDS)),
        ({"hurried": True, "has_input": True}, opened("input", "command")),
        ({"has_input": True, "until_due": 0.0, "in_flight": True}, opened("input", "due", "in_flight")),
        # The interval delays input and due times, but not records in flight, times left over and commands.
        ({"until_interval": 0.1, "has_input": None}, pause(0.1)),
        ({"until_interval": 9.0, "has_input": None}, pause(0.25)),
        ({"until_interval": 9.0, "until_due": 0.0, "has_input": None}, pause(0.25)),
        ({"until_interval": 9.0, "in_flight": True, "has_input": None}, ASK),
        ({"until_interval": 9.0, "until_due": 0.0, "left_over": True, "has_input": None}, ASK),
        ({"until_interval": 9.0, "hurried": True, "has_input": None}, ASK),
        ({"until_interval": 9.0, "commanded": True, "has_input": None}, ASK),
        # No epoch opens while the sinks are too far behind.
        ({"has_room": False, "has_input": None}, WAIT),
        ({"has_room": False, "in_flight": True}, WAIT),
        # A run ends with its sources, after due times and records in flight.
        ({"ended": True, "has_input": None}, END),
        ({"ended": True, "has_room": False, "has_input": None}, END),
        ({"ended": True, "until_due": 3600.0, "has_input": None}, END),
        ({"ended": True, "until_due": 0.0, "has_input": None}, ASK),
        ({"ended": True, "until_due": 0.0}, opened("due")),
        ({"ended": True, "in_flight": True, "has_input": None}, ASK),
        ({"ended": True, "commanded": True}, opened("command")),
        # The drain waits for no interval and no due time. No epoch follows it, so commands come first.
        ({"ended": True, "to_drain": True, "until_interval": 9.0, "until_due": 60.0, "has_input": None}, ASK),
        ({"ended": True, "to_drain": True, "until_due": 60.0}, opened("drain")),
        ({"ended": True, "to_drain": True, "until_due": 0.0}, opened("due", "drain")),
        ({"ended": True, "to_drain": True, "in_flight": True}, opened("in_flight")),
        ({"ended": True, "to_drain": True, "hurried": True, "has_input": None}, END),
        ({"ended": True, "to_drain": True, "commanded": True}, opened("command")),
        ({"ended": True, "to_drain": True, "has_room": False, "has_input": None}, WAIT),
        ({"drained": True, "has_input": None}, END),
        ({"drained": True, "ended": True, "until_due": 0.0, "commanded": True, "has_input": None}, END),
        ({"drained": True, "in_flight": True}, opened("in_flight", "drain")),
    ],
    ids=str,
)
def test_triggers_decide_the_next_step_of_the_loop(changes: dict[str, bool | float | None], decision: Decision) -> None:
    assert decide(replace(AT_REST, **changes)) == decision  # type: ignore[arg-type]


def due(name: str = "late", **times: int) -> dict[str, Due]:
    return {name: Due(**times)}


GRAPH = TimeGraph((Declaration("ts", delay=0, idle_after=MINUTE), TimedOperator("late", ("ts",))))


def prepared(fire: int, seen: int = BEGINNING, active_at: int = NOON) -> Clock:
    """Clock of an epoch at noon with this fire watermark, and this watermark of the source."""
    partition = PartitionClock(watermark=seen, active_at=active_at)
    return Clock(epoch_time=NOON, places={"late": Watermarks(fire=fire)}, partitions={"ts": {WHOLE: partition}})


@pytest.mark.parametrize(
    ("times", "at", "left"),
    [
        ({}, None, False),
        ({"processing": NOON + 90 * SECOND}, NOON + 90 * SECOND, False),
        ({"processing": NOON}, NOON, True),
        ({"event": NOON - HOUR}, NOON, True),
        ({"event": NOON - 59 * MINUTE}, NOON, False),
        ({"event": NOON - 29 * MINUTE}, None, False),
        ({"event": NOON - HOUR, "processing": NOON + 5 * SECOND}, NOON, True),
        ({"event": NOON, "processing": NOON + 5 * SECOND}, NOON + 5 * SECOND, False),
    ],
    ids=str,
)
def test_event_times_follow_watermarks_and_processing_times_the_clock(
    times: dict[str, int], at: int | None, left: bool
) -> None:
    clock = prepared(fire=NOON - HOUR, seen=NOON - 30 * MINUTE)
    found = next_due(GRAPH, clock, due(**times), ["late"], BEGINNING)
    assert (None if found is None else found.at) == at
    assert found is None or times[found.clock] == found.until
    assert left_over(clock, due(**times), ["late"]) is left


def test_the_earliest_time_of_existing_operators_is_due() -> None:
    clock = prepared(fire=NOON - HOUR)
    waiting = {
        **due("dropped", processing=NOON),
        **due("first", processing=NOON + 2 * SECOND),
        **due("second", processing=NOON + SECOND),
        **due("without watermark", event=NOON - DAY),
    }
    every = ["first", "second", "without watermark", "new"]
    found = next_due(GRAPH, clock, waiting, every, BEGINNING)
    assert found == NextDue(NOON + SECOND, "second", "processing", NOON + SECOND)
    assert next_due(GRAPH, clock, waiting, ["without watermark"], BEGINNING) is None
    assert not left_over(clock, waiting, every)
