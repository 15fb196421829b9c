"""Watermarks as pure functions: what an epoch runs with, from its parent's clock and what opens it (design/time.md).

Of each place a watermark *w* says: rows with event times before *w* have come. A row is late where its time is before
*late*; a window closes, and a timer is due, where *fire* has reached it (``at <= fire``); nothing more can come at a
time that *fire* has passed (``at < fire``). An epoch takes its rows by *late*, and then fires by *fire*, so that the
rows that made the watermark advance, and those that came with them, are never late by it.

An epoch runs with a clock that is chosen when it opens (step E1, :func:`opened`); what its rows were seen to hold is
added when it is prepared (E4, :func:`observed`) and moves the watermarks of the next. The clock stands in the manifest:
every retry of an epoch runs with the same one, and a replay over the same openings and rows comes to the same.

Low watermarks: Li et al., "Out-of-order processing", and Akidau et al., "The dataflow model": references [22] and [21]
of the thesis. All times are microseconds from the Unix epoch; *epoch time* is the driver's clock, which never falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from epochal.contracts.conditions import BEGINNING as BEGINNING
from epochal.contracts.conditions import END as END
from epochal.contracts.conditions import LATEST as LATEST
from epochal.contracts.conditions import Clock as Clock
from epochal.contracts.conditions import PartitionClock as PartitionClock
from epochal.contracts.conditions import Watermarks as Watermarks

WHOLE: Final = ""
"""The one partition of a source that has none."""


@dataclass(frozen=True)
class Declaration:
    """``with_watermark`` somewhere in the graph. ``idle_after``: microseconds of epoch time; ``None``: never idle."""

    name: str
    delay: int
    idle_after: int | None = None


@dataclass(frozen=True)
class TimedOperator:
    """An operator that reads streams with event time: the places that its inputs' watermarks come from, and its hold.

    ``hold``: so far behind its own watermarks are those of its output, in microseconds.
    """

    name: str
    inputs: tuple[str, ...]
    hold: int = 0


@dataclass(frozen=True)
class TimeGraph:
    """The places of a program that have watermarks, in the order in which rows pass them.

    Raises ``ValueError`` for names that are not unique, inputs that do not come before, and negative lengths.
    """

    places: tuple[Declaration | TimedOperator, ...]

    def __post_init__(self) -> None:
        before: set[str] = set()
        for place in self.places:
            if place.name in before:
                raise ValueError(f"two places of watermarks are named {place.name!r}")
            if isinstance(place, TimedOperator):
                if not place.inputs or not before.issuperset(place.inputs):
                    raise ValueError(
                        f"operator {place.name!r}: its inputs are {place.inputs!r}; before it are {before!r}"
                    )
                if place.hold < 0:
                    raise ValueError(f"operator {place.name!r}: its hold is negative")
            elif place.delay < 0 or (place.idle_after is not None and place.idle_after <= 0):
                raise ValueError(f"declaration {place.name!r}: delay or idle_after is negative or zero")
            before.add(place.name)

    @property
    def declarations(self) -> Iterator[Declaration]:
        return (place for place in self.places if isinstance(place, Declaration))


WITHOUT_TIME: Final = TimeGraph(())
"""Of a program without event time."""


@dataclass(frozen=True)
class Opening:
    """What an epoch opens with, all of it known at E1.

    ``now``: the driver's clock. ``attempt_began``: its attempt's, by the same clock. ``slices``: for each declaration
    the partitions that this epoch may have rows of (``{WHOLE}`` where there are none). ``known``: for each declaration
    the partitions that its source has now; where it does not say, those that rows came from. ``ended``: declarations
    whose sources are all bounded and have been read to their ends, by earlier epochs.
    """

    now: int
    attempt_began: int = BEGINNING
    slices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()


def opened(graph: TimeGraph, parent: Clock | None, opening: Opening) -> Clock:
    """The clock that an epoch runs with. ``parent``: the prepared clock of its parent; ``None``: there is none.

    late := the parent's fire; fire := max(late, the least over the inputs that are not idle).
    """
    before = parent or Clock(epoch_time=opening.now)
    epoch_time = max(opening.now, before.epoch_time)
    began = max(opening.attempt_began, before.attempt_began)
    places: dict[str, Watermarks] = {}
    partitions: dict[str, dict[str, PartitionClock]] = {}
    for place in graph.places:
        if isinstance(place, Declaration):
            partitions[place.name] = _partitions(place, before, opening, epoch_time, began)
            inputs = _inputs_of_declaration(place, partitions[place.name], opening)
        else:
            inputs = [_output(places[name], _hold(graph, name)) for name in place.inputs]
        places[place.name] = _advanced(before.places.get(place.name), inputs)
    return Clock(epoch_time=epoch_time, attempt_began=began, places=places, partitions=partitions)


def observed(graph: TimeGraph, clock: Clock, latest: Mapping[str, Mapping[str, int | None]]) -> Clock:
    """``clock``, with which the epoch ran, and what it observed: for the manifest.

    ``latest``: for each declaration and partition the greatest event time of the rows that were not rejected. What is
    missing or ``None`` was not observed, and leaves all as it was.
    """
    partitions = {name: dict(clocks) for name, clocks in clock.partitions.items()}
    for declaration in graph.declarations:
        clocks = partitions.setdefault(declaration.name, {})
        for partition, time in latest.get(declaration.name, {}).items():
            if time is not None:
                earlier = clocks[partition].watermark if partition in clocks else BEGINNING
                watermark = max(earlier, behind(time, declaration.delay))
                clocks[partition] = PartitionClock(watermark=watermark, active_at=clock.epoch_time, fresh=True)
    return clock.model_copy(update={"partitions": partitions})


def latest_accepted(epoch_time: int, max_ahead: int | None) -> int:
    """The last event time that is not rejected in an epoch."""
    return LATEST if max_ahead is None else min(epoch_time + max_ahead, LATEST)


def output_of(graph: TimeGraph, clock: Clock, name: str) -> Watermarks:
    """The watermarks of the stream behind a place, both: its own, minus its hold."""
    return _output(clock.places[name], _hold(graph, name))


def idle_at(
    graph: TimeGraph, clock: Clock, attempt_began: int = BEGINNING, ended: frozenset[str] = frozenset()
) -> tuple[int, ...]:
    """The epoch times, ascending, at which partitions that are not idle will be if nothing comes: dues of the loop.

    None is before the clock's own epoch time. What is idle already, or ended, has none. A new attempt, which began
    after that of the clock, waits for all again.
    """
    began = max(attempt_began, clock.attempt_began)
    times = {
        max(max(partition.active_at, began) + declaration.idle_after, clock.epoch_time)
        for declaration in graph.declarations
        if declaration.idle_after is not None and declaration.name not in ended
        for partition in clock.partitions.get(declaration.name, {}).values()
        if not partition.idle or began > clock.attempt_began
    }
    return tuple(sorted(times))


def due_at(
    graph: TimeGraph,
    clock: Clock,
    waiting: Mapping[str, int],
    attempt_began: int = BEGINNING,
    ended: frozenset[str] = frozenset(),
) -> int | None:
    """The earliest epoch time at which an epoch without input would reach what some operator waits for.

    ``clock``: of the last prepared epoch. ``waiting``: for each operator the earliest event time that its state waits
    for; those that are no places of the graph wait for ever. It is the clock's own epoch time where what was observed
    is enough: the loop opens an epoch at once.
    """
    waiting = {place.name: waiting[place.name] for place in graph.places if place.name in waiting}
    if not waiting:
        return None
    for time in (clock.epoch_time, *idle_at(graph, clock, attempt_began, ended)):
        opening = Opening(now=time, attempt_began=attempt_began, ended=ended)
        first = opened(graph, clock, opening)
        # What the last epoch observed counts in the first; a partition that it observed can be idle only in the second.
        for places in (first.places, opened(graph, first, opening).places):
            if any(at <= places[name].fire for name, at in waiting.items()):
                return time
    return None


def behind(time: int, length: int) -> int:
    """``time - length``; what is before or after all times stays there, and nothing else gets there."""
    return time if time in (BEGINNING, END) else max(time - length, BEGINNING + 1)


def _advanced(before: Watermarks | None, inputs: list[Watermarks]) -> Watermarks:
    # An input at its end holds up nobody, and moves nobody either while another one may come back from idleness: else
    # all that this one brings would be late for ever.
    active = [one for one in inputs if not one.idle and one.fire != END]
    if before is None:
        # A place that a new version added: it has nothing to fire yet, and what is late to its inputs is late to it.
        late = min((one.late for one in active), default=BEGINNING)
    else:
        late = before.fire
    if active:
        return Watermarks(late=late, fire=max(late, min(one.fire for one in active)))
    if all(one.fire == END for one in inputs):
        return Watermarks(late=late, fire=END)
    return Watermarks(late=late, fire=late, idle=True)


def _output(watermarks: Watermarks, hold: int) -> Watermarks:
    return Watermarks(late=behind(watermarks.late, hold), fire=behind(watermarks.fire, hold), idle=watermarks.idle)


def _hold(graph: TimeGraph, name: str) -> int:
    return next((p.hold for p in graph.places if p.name == name and isinstance(p, TimedOperator)), 0)


def _inputs_of_declaration(
    declaration: Declaration, clocks: Mapping[str, PartitionClock], opening: Opening
) -> list[Watermarks]:
    if declaration.name in opening.ended:
        return [Watermarks(fire=END)]
    return [Watermarks(fire=clock.watermark, idle=clock.idle) for clock in clocks.values()]


def _partitions(
    declaration: Declaration, before: Clock, opening: Opening, epoch_time: int, attempt_began: int
) -> dict[str, PartitionClock]:
    """The partitions that the declaration waits for in this epoch, and which of them are idle."""
    clocks = before.partitions.get(declaration.name, {})
    slices = opening.slices.get(declaration.name, frozenset())
    names = slices | opening.known.get(declaration.name, frozenset(clocks))
    if len(names) > 1 and (WHOLE not in clocks or clocks[WHOLE].watermark == BEGINNING):
        names -= {WHOLE}  # it stood for a source of which no partition had been seen
    found = {}
    for name in sorted(names or {WHOLE}):
        clock = clocks.get(name)
        watermark = BEGINNING if clock is None else clock.watermark
        active_at = epoch_time if clock is None else max(clock.active_at, attempt_began)
        quiet = declaration.idle_after is not None and epoch_time - active_at >= declaration.idle_after
        # However long the parent took: what it observed has to count once.
        quiet &= clock is None or not clock.fresh
        found[name] = PartitionClock(watermark=watermark, active_at=active_at, idle=quiet and name not in slices)
    return found
