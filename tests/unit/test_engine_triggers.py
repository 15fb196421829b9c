"""What the loop does next: a pure decision, and the times that it is made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.contracts.conditions import Clock, Due, EpochConditions, Trigger, Watermarks
from epochal.engine.triggers import POLL_SECONDS, Decision, Situation, Step, decide, until_due

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
    ("different", "decision"),
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
        # The interval holds back input and times, but not records in flight, times that were left, and commands.
        ({"until_interval": 0.1, "has_input": None}, pause(0.1)),
        ({"until_interval": 9.0, "has_input": None}, pause(0.25)),
        ({"until_interval": 9.0, "until_due": 0.0, "has_input": None}, pause(0.25)),
        ({"until_interval": 9.0, "in_flight": True, "has_input": None}, ASK),
        ({"until_interval": 9.0, "until_due": 0.0, "left_over": True, "has_input": None}, ASK),
        ({"until_interval": 9.0, "hurried": True, "has_input": None}, ASK),
        ({"until_interval": 9.0, "commanded": True, "has_input": None}, ASK),
        # Nothing is opened while the sinks are too far behind.
        ({"has_room": False, "has_input": None}, WAIT),
        ({"has_room": False, "in_flight": True}, WAIT),
        # A run ends with its sources, but not before what is due and what is in flight.
        ({"ended": True, "has_input": None}, END),
        ({"ended": True, "has_room": False, "has_input": None}, END),
        ({"ended": True, "until_due": 3600.0, "has_input": None}, END),
        ({"ended": True, "until_due": 0.0, "has_input": None}, ASK),
        ({"ended": True, "until_due": 0.0}, opened("due")),
        ({"ended": True, "in_flight": True, "has_input": None}, ASK),
        ({"ended": True, "commanded": True}, opened("command")),
    ],
    ids=str,
)
def test_what_comes_next(different: dict[str, bool | float | None], decision: Decision) -> None:
    assert decide(replace(AT_REST, **different)) == decision  # type: ignore[arg-type]


def due(name: str = "late", **times: int) -> dict[str, Due]:
    return {name: Due(**times)}


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ({}, None),
        ({"processing": NOON + 90 * SECOND}, 90.0),
        ({"processing": NOON}, 0.0),
        ({"processing": NOON - DAY}, 0.0),
        ({"event": NOON - HOUR}, 0.0),
        ({"event": NOON - 59 * MINUTE}, None),
        ({"event": NOON - HOUR, "processing": NOON + 5 * SECOND}, 0.0),
        ({"event": NOON, "processing": NOON + 5 * SECOND}, 5.0),
    ],
    ids=str,
)
def test_event_times_are_due_by_the_watermark_and_processing_times_by_the_clock(
    times: dict[str, int], seconds: float | None
) -> None:
    conditions = EpochConditions(clock=Clock(epoch_time=NOON, places={"late": Watermarks(fire=NOON - HOUR)}))
    assert until_due(due(**times), ["late"], conditions) == seconds


def test_the_first_time_of_all_operators_counts_and_those_that_are_gone_do_not() -> None:
    conditions = EpochConditions(clock=Clock(epoch_time=NOON))
    waiting = {
        **due("dropped", processing=NOON),
        **due("first", processing=NOON + 2 * SECOND),
        **due("second", processing=NOON + SECOND),
        **due("without watermark", event=NOON),
    }
    assert until_due(waiting, ["first", "second", "without watermark", "new"], conditions) == 1.0
    assert until_due(waiting, ["without watermark"], conditions) is None
