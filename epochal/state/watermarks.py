"""Watermarks as pure functions: an epoch's clock, from its parent's clock and its opening (design/time.md).

At each place, a watermark *w* asserts that all rows with event times before *w* have arrived. A row is late if its time
is before *late*. A window closes, and a timer is due, when *fire* has reached its time (``at <= fire``). No row arrives
at a time that *fire* has passed (``at < fire``). An epoch first accepts rows by *late* and then fires by *fire*. The
rows that advanced the watermark, and the rows of the same epoch, are therefore never late because of it.

The clock of an epoch is determined when the epoch opens (step E1, :func:`opened`). The event times of its rows are
added when it is prepared (E4, :func:`observed`) and advance the watermarks of the next epoch. The manifest stores the
clock: every retry of an epoch runs with the same clock, and a replay over the same openings and rows yields the same
results.

Low watermarks: Li et al., "Out-of-order processing", and Akidau et al., "The dataflow model": references [22] and [21]
of the thesis. All times are microseconds since the Unix epoch; *epoch time* is the driver's monotonic clock.
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
"""The single partition of an unpartitioned source."""


@dataclass(frozen=True)
class Declaration:
    """A ``with_watermark`` call in the graph. ``idle_after``: microseconds of epoch time; ``None``: never idle."""

    name: str
    delay: int
    idle_after: int | None = None


@dataclass(frozen=True)
class TimedOperator:
    """An operator that reads streams with event time. ``inputs``: the places that provide its inputs' watermarks.

    ``hold``: the distance by which its output's watermarks lag behind its own, in microseconds.
    """

    name: str
    inputs: tuple[str, ...]
    hold: int = 0


@dataclass(frozen=True)
class TimeGraph:
    """The places of a program that have watermarks, in the order in which rows pass them.

    Raises ``ValueError`` for duplicate names, inputs that do not precede their operator, and negative durations.
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
"""The graph of a program without event time."""


@dataclass(frozen=True)
class Opening:
    """Inputs of an epoch's clock, all available at E1.

    ``now``: the driver's clock. ``attempt_began``: the start of its attempt, by the same clock. ``slices``: for each
    declaration, the partitions that may have rows in this epoch (``{WHOLE}`` for an unpartitioned source). ``known``:
    for each declaration, the current partitions of its source; if the source does not list them, the partitions that
    have delivered rows. ``ended``: declarations whose sources are all bounded and were read to the end by earlier
    epochs.
    """

    now: int
    attempt_began: int = BEGINNING
    slices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()


def opened(graph: TimeGraph, parent: Clock | None, opening: Opening) -> Clock:
    """The clock of an epoch. ``parent``: the prepared clock of its parent; ``None``: no parent.

    late := the parent's fire; fire := max(late, the minimum over the inputs that are not idle).
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
    """The epoch's ``clock`` with the observed event times, for the manifest.

    ``latest``: for each declaration and partition, the greatest event time of the rows that were not rejected. A
    missing partition or ``None`` changes nothing.
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
    """The greatest event time that an epoch does not reject."""
    return LATEST if max_ahead is None else min(epoch_time + max_ahead, LATEST)


def output_of(graph: TimeGraph, clock: Clock, name: str) -> Watermarks:
    """The watermarks of the stream that a place emits: both of its own watermarks, minus its hold."""
    return _output(clock.places[name], _hold(graph, name))


def idle_at(
    graph: TimeGraph, clock: Clock, attempt_began: int = BEGINNING, ended: frozenset[str] = frozenset()
) -> tuple[int, ...]:
    """The epoch times, ascending, at which active partitions become idle without input: due times of the loop.

    No time is before the clock's own epoch time. Partitions that are idle or ended have no due time. A new attempt,
    which began after the clock's attempt, waits for all partitions again.
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
    """The earliest epoch time at which an epoch without input reaches an event time that an operator waits for.

    ``clock``: the clock of the last prepared epoch. ``waiting``: for each operator, the earliest event time that its
    state waits for; an operator that is not a place of the graph never becomes due. If the observed event times
    suffice, the result is the clock's own epoch time, and the loop opens an epoch immediately.
    """
    waiting = {place.name: waiting[place.name] for place in graph.places if place.name in waiting}
    if not waiting:
        return None
    for time in (clock.epoch_time, *idle_at(graph, clock, attempt_began, ended)):
        opening = Opening(now=time, attempt_began=attempt_began, ended=ended)
        first = opened(graph, clock, opening)
        # The first epoch applies the event times that the last epoch observed. A partition observed by the last epoch
        # can become idle only in the second.
        for places in (first.places, opened(graph, first, opening).places):
            if any(at <= places[name].fire for name, at in waiting.items()):
                return time
    return None


def behind(time: int, length: int) -> int:
    """``time - length``. ``BEGINNING`` and ``END`` remain unchanged, and no other time becomes one of them."""
    return time if time in (BEGINNING, END) else max(time - length, BEGINNING + 1)


def _advanced(before: Watermarks | None, inputs: list[Watermarks]) -> Watermarks:
    # An ended input does not hold back the watermark. It does not advance it either while an idle input may resume:
    # otherwise all rows of that input would be late.
    active = [one for one in inputs if not one.idle and one.fire != END]
    if before is None:
        # A place added by a new version has nothing to fire yet; a row that is late for its inputs is late for it.
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
    """The clocks of the partitions that the declaration waits for in this epoch, including idle ones."""
    clocks = before.partitions.get(declaration.name, {})
    slices = opening.slices.get(declaration.name, frozenset())
    names = slices | opening.known.get(declaration.name, frozenset(clocks))
    if len(names) > 1 and (WHOLE not in clocks or clocks[WHOLE].watermark == BEGINNING):
        names -= {WHOLE}  # placeholder until the first partition of the source appears
    found = {}
    for name in sorted(names or {WHOLE}):
        clock = clocks.get(name)
        watermark = BEGINNING if clock is None else clock.watermark
        active_at = epoch_time if clock is None else max(clock.active_at, attempt_began)
        quiet = declaration.idle_after is not None and epoch_time - active_at >= declaration.idle_after
        # Event times that the parent observed must count once, regardless of the parent's duration.
        quiet &= clock is None or not clock.fresh
        found[name] = PartitionClock(watermark=watermark, active_at=active_at, idle=quiet and name not in slices)
    return found
