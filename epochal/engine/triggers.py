"""What the epoch loop does next, as one pure decision over what it knows.

================  ==========================================================================================
an epoch opens    when
================  ==========================================================================================
for input         a source has a slice that is new; at once when it has calls, which somebody waits for
for a due time    an operator waits for a time that has come; what that is stands in the parent's manifest; at once
                  when it had come for the parent, which left it
in flight         a loop has records in flight: at once, the interval does not matter
for a command     somebody asked for it: at once; a savepoint of an application at rest is its head
to drain          all sources are bounded and at their end, and no records are in flight: at once, and nothing after it
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
"""The control plane is asked for directives at least as often."""
POLL_SECONDS = 0.05
"""How often sources without new input are asked again."""


@dataclass(frozen=True)
class Situation:
    """What the loop knows between two epochs. Times are seconds from now, 0 when they have come."""

    has_room: bool
    """Another epoch may be prepared while those before are being committed."""
    ended: bool
    """All sources have given all that they ever will."""
    until_interval: float
    """``epoch_interval_seconds`` after the start of the epoch before."""
    until_due: float | None
    """``None``: nothing waits for a time that the clock alone will bring."""
    in_flight: bool
    urgent: bool = False
    """Somebody waits for what has come: calls are answered by an epoch."""
    left_over: bool = False
    """Something was due in the epoch before already, which left it for the next."""
    hurried: bool = False
    """A savepoint: what there is is taken now, whatever the interval."""
    commanded: bool = False
    """Another version begins: with what there is, also with nothing."""
    to_drain: bool = False
    """Nothing will ever come any more, and what waits for event time has not come out yet."""
    drained: bool = False
    """The epoch before was the last one."""
    has_input: bool | None = None
    """``None``: the sources were not asked."""


class Step(StrEnum):
    """What comes next."""

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
    """What the loop does next. Sources are only asked when an epoch with their input could be opened."""
    opened_for = _triggers(situation)
    at_once = any((situation.in_flight, situation.urgent, situation.left_over, situation.hurried, situation.commanded))
    at_once |= "drain" in opened_for
    is_over = situation.drained or (situation.ended and not opened_for)
    if is_over and not situation.in_flight:
        return Decision(Step.END)
    if not situation.has_room:
        return Decision(Step.WAIT_FOR_COMMITS)
    if situation.until_interval > 0 and not at_once:
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
    # Nobody can go on from what is drained: a savepoint, and the first epoch of another version, come before it.
    drains = situation.to_drain and not (situation.in_flight or situation.hurried or situation.commanded)
    holds["drain"] = drains or (situation.drained and situation.in_flight)
    return tuple(trigger for trigger, held in holds.items() if held)


@dataclass(frozen=True, order=True)
class NextDue:
    """What opens the next epoch without input: the operator that waits, by which clock, and until when by that clock.

    ``at``: the epoch time at which that has come. In microseconds from the Unix epoch.
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
    """When an epoch without input would reach the first time that one of ``operators`` waits for.

    ``clock`` and ``due``: of the last prepared epoch. ``ended``: declarations for which nothing more will come. At that
    epoch's own time: at once; ``None``: only input can bring one.
    """
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
    """Whether one of ``operators`` waits for a time that had come in the epoch itself, which left it for the next."""
    for name in operators:
        waits = due.get(name, Due())
        fire = clock.places.get(name, NO_WATERMARKS).fire
        if (waits.event is not None and waits.event <= fire) or (
            waits.processing is not None and waits.processing <= clock.epoch_time
        ):
            return True
    return False
