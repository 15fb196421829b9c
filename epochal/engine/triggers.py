"""Next step of the epoch loop, as a pure decision over a :class:`Situation`.

================  ==========================================================================================
an epoch opens    when
================  ==========================================================================================
for input         a source has a new slice; immediately if it has calls, for which callers wait
for a due time    an operator waits for a time that is due, as the parent's manifest records; immediately if it was
                  due for the parent already
in flight         a loop has records in flight: immediately, regardless of the interval
for a command     a user requested it: immediately; the savepoint of an idle application is its head
to drain          all sources are bounded and have ended, and no records are in flight: immediately, as the last epoch
================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from epochal.contracts.conditions import NO_WATERMARKS, Clock, Due, Trigger
from epochal.state.watermarks import TimeGraph, due_at

LONGEST_PAUSE_SECONDS = 0.25
"""Maximum pause between heartbeats, which fetch directives."""
POLL_SECONDS = 0.05
"""Interval between checks of sources without new input."""


@dataclass(frozen=True)
class Situation:
    """Input of the loop's decision, between two epochs. Times are seconds from now, 0 when reached."""

    has_room: bool
    """True if another epoch may be prepared before earlier ones are committed."""
    ended: bool
    """All sources have ended."""
    until_interval: float
    """Time until ``epoch_interval_seconds`` after the start of the previous epoch."""
    until_due: float | None
    """Time until an epoch without input is due; ``None``: only input can make one due."""
    in_flight: bool
    urgent: bool = False
    """Callers wait for an epoch that answers their calls."""
    left_over: bool = False
    """A time was due in the previous epoch already, which left it for the next."""
    hurried: bool = False
    """A savepoint was requested: take available input now, regardless of the interval."""
    commanded: bool = False
    """A command opens an epoch with or without input, such as the first epoch of another version."""
    to_drain: bool = False
    """All input has ended, and windows or timers have not fired yet."""
    drained: bool = False
    """The previous epoch was the last one."""
    has_input: bool | None = None
    """``None``: the sources have not been checked."""


class Step(StrEnum):
    """Next step of the loop."""

    END = "end"
    WAIT_FOR_COMMITS = "wait for commits"
    PAUSE = "pause"
    ASK_SOURCES = "ask sources"
    OPEN = "open"


@dataclass(frozen=True)
class Decision:
    """``opened_for`` of :attr:`Step.OPEN`, ``seconds`` of :attr:`Step.PAUSE`."""

    step: Step
    opened_for: tuple[Trigger, ...] = ()
    seconds: float = 0.0


def decide(situation: Situation) -> Decision:
    """Decide the next step. Sources are checked only when an epoch with their input could open."""
    opened_for = _triggers(situation)
    immediate = any(
        (situation.in_flight, situation.urgent, situation.left_over, situation.hurried, situation.commanded)
    )
    immediate |= "drain" in opened_for
    is_over = situation.drained or (situation.ended and not opened_for)
    if is_over and not situation.in_flight:
        return Decision(Step.END)
    if not situation.has_room:
        return Decision(Step.WAIT_FOR_COMMITS)
    if situation.until_interval > 0 and not immediate:
        return Decision(Step.PAUSE, seconds=min(LONGEST_PAUSE_SECONDS, situation.until_interval))
    if situation.has_input is None:
        return Decision(Step.ASK_SOURCES)
    if opened_for:
        return Decision(Step.OPEN, opened_for)
    until_due = POLL_SECONDS if situation.until_due is None else situation.until_due
    return Decision(Step.PAUSE, seconds=min(POLL_SECONDS, until_due))


def _triggers(situation: Situation) -> tuple[Trigger, ...]:
    holds: dict[Trigger, bool] = {
        "input": bool(situation.has_input),
        "due": situation.until_due == 0,
        "in_flight": situation.in_flight,
    }
    holds["command"] = situation.commanded or (situation.hurried and any(holds.values()))
    # A drained snapshot cannot be continued: savepoints and first epochs of other versions precede the drain.
    drains = situation.to_drain and not (situation.in_flight or situation.hurried or situation.commanded)
    holds["drain"] = drains or (situation.drained and situation.in_flight)
    return tuple(trigger for trigger, held in holds.items() if held)


@dataclass(frozen=True, order=True)
class NextDue:
    """Next due time: the operator that waits, its clock, and the time by that clock.

    ``at``: epoch time at which it is due. In microseconds from the Unix epoch.
    """

    at: int
    operator: str
    clock: Literal["event", "processing"]
    until: int


def next_due(
    graph: TimeGraph,
    clock: Clock,
    due: Mapping[str, Due],
    operators: Collection[str],
    attempt_began: int,
    ended: frozenset[str] = frozenset(),
) -> NextDue | None:
    """Next due time of ``operators`` that an epoch without input can reach; ``None``: only input can make one due.

    ``clock`` and ``due``: those of the last prepared epoch. ``ended``: declarations whose input has ended. A time not
    after that epoch's own is due immediately."""
    found: list[NextDue] = []
    for name in operators:
        waits = due.get(name, Due())
        if waits.processing is not None:
            found.append(NextDue(waits.processing, name, "processing", waits.processing))
        if waits.event is not None:
            at = due_at(graph, clock, {name: waits.event}, attempt_began, ended)
            found += [] if at is None else [NextDue(at, name, "event", waits.event)]
    return min(found, default=None)


def left_over(clock: Clock, due: Mapping[str, Due], operators: Collection[str]) -> bool:
    """True if one of ``operators`` waits for a time that was due in the epoch itself, which left it for the next."""
    for name in operators:
        waits = due.get(name, Due())
        fire = clock.places.get(name, NO_WATERMARKS).fire
        if (waits.event is not None and waits.event <= fire) or (
            waits.processing is not None and waits.processing <= clock.epoch_time
        ):
            return True
    return False
