"""Epoch cuts: the four invariants of the thesis, definition 3.4.2, over a recorded trace.

A trace has the events and epoch marks of each process, and the productions between events. The cut of an epoch is the
content of its snapshot: the events that the recorded state of each process reflects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

Event = Hashable


@dataclass(frozen=True)
class Mark:
    """The epoch event of one process, ``<ep_n>``: earlier events of the process belong to this epoch or an earlier
    one.

    Definition 3.4.1 requires them in the order of their epochs at each process.
    """

    process: str
    epoch: int


@dataclass(frozen=True)
class Trace:
    """``processes``: the events and marks of each process in local order. ``productions``: the results of each event.

    ``returned``: results through a channel that closes a loop. They are causal like any production, but can belong to
    a later epoch: a loop does not end on its own (thesis, 3.4.4.4).
    """

    processes: Mapping[str, Sequence[Event]]
    productions: Mapping[Event, Collection[Event]]
    returned: Mapping[Event, Collection[Event]] = field(default_factory=dict)

    def marks(self, epoch: int) -> list[Mark]:
        marks = (event for events in self.processes.values() for event in events if isinstance(event, Mark))
        return [mark for mark in marks if mark.epoch == epoch]

    def after(self, events: Iterable[Event]) -> set[Event]:
        """Return all events that one of ``events`` precedes (definition 3.3.2: local order, production, and their
        closure)."""
        return _reachable(events, self._successors)

    def before(self, events: Iterable[Event]) -> set[Event]:
        """Return all events that precede one of ``events``."""
        backward: dict[Event, set[Event]] = defaultdict(set)
        for event, following in self._successors.items():
            for successor in following:
                backward[successor].add(event)
        return _reachable(events, backward)

    def across(self, cut: Collection[Event]) -> set[tuple[Event, Event]]:
        """Return the productions that leave the cut: the messages in transit when it was taken."""
        inside = set(cut)
        edges = (
            (event, result)
            for kind in (self.productions, self.returned)
            for event in inside
            for result in kind.get(event, ())
        )
        return {(event, result) for event, result in edges if result not in inside}

    @cached_property
    def _successors(self) -> dict[Event, set[Event]]:
        forward: dict[Event, set[Event]] = defaultdict(set)
        for events in self.processes.values():
            for event, following in pairwise(events):
                forward[event].add(following)
        for kind in (self.productions, self.returned):
            for event, produced in kind.items():
                forward[event] |= set(produced)
        return forward


def cut_violations(trace: Trace, epoch: int, cut: Collection[Event]) -> list[str]:
    """Return the invariants that the cut of ``epoch`` breaks, with one event for each. A cut contains no marks."""
    inside = set(cut)
    marks = trace.marks(epoch)
    found = []
    if wrong := _events(trace.after(marks)) & inside:
        found.append(f"(1) comes after the mark of epoch {epoch} and is in its cut: {_one(wrong)}")
    if wrong := _events(trace.before(marks)) - inside:
        found.append(f"(2) comes before the mark of epoch {epoch} and is not in its cut: {_one(wrong)}")
    produced = {result for event in inside for result in trace.productions.get(event, ())}
    if wrong := produced - inside:
        found.append(f"(3) was produced by the cut of epoch {epoch} and is not in it: {_one(wrong)}")
    return found + inconsistencies(trace, epoch, inside)


def inconsistencies(trace: Trace, epoch: int, cut: Collection[Event]) -> list[str]:
    """Check that the cut is consistent (definition 3.2.3), which is invariant (4)."""
    inside = set(cut)
    if wrong := _events(trace.before(inside)) - inside:
        return [f"(4) precedes an event in the cut of epoch {epoch} and is not in it: {_one(wrong)}"]
    return []


def disorder(trace: Trace) -> list[str]:
    """Return marks of one process that are not in the order of their epochs (definition 3.4.1)."""
    found = []
    for process, events in trace.processes.items():
        epochs = [event.epoch for event in events if isinstance(event, Mark)]
        found += [f"{process}: mark {after} after {before}" for before, after in pairwise(epochs) if after <= before]
    return found


def _reachable(start: Iterable[Event], edges: Mapping[Event, set[Event]]) -> set[Event]:
    """Return the reachable events; start events are included only if they are reached again."""
    found: set[Event] = set()
    pending = [following for event in start for following in edges.get(event, ())]
    while pending:
        event = pending.pop()
        if event not in found:
            found.add(event)
            pending += edges.get(event, ())
    return found


def _events(found: Iterable[Event]) -> set[Event]:
    return {event for event in found if not isinstance(event, Mark)}


def _one(events: Iterable[Event]) -> str:
    return str(min(events, key=repr))
