"""The event time of the simulation: when an event from outside happened, which of them are late, what waits for a time.

The source's log is up to four seconds out of order, the delay of the watermark is one: so some events are late. They
change nothing and come out as such. Some others set an alarm for their key, which the watermark fires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from epochal.contracts.conditions import BEGINNING
from epochal.contracts.source import Slice
from epochal.declarations.event_time import EventTime
from epochal.engine.event_time import TimePlan
from epochal.pipeline.partitions import Partitions
from epochal.state.watermarks import Declaration, TimedOperator, TimeGraph

Rows = list[tuple[int, int]]
Alarms = dict[int, int]
"""By key the event time that it waits for."""

SECOND: Final = 1_000_000
TIME: Final = "time"
DELAY: Final = SECOND
ALARMED, LATE = -2, -3
"""What an output row has instead of a total: when an alarm was due, and of an event that was late."""


def time_plan(source: str, operator: str) -> TimePlan:
    """Of one operator over one source without partitions."""
    graph = TimeGraph((Declaration(TIME, DELAY), TimedOperator(operator, (TIME,))))
    partitions = Partitions({TIME: frozenset({source})}, {}, frozenset())
    return TimePlan(graph, partitions, {TIME: EventTime("happened", DELAY).details()})


@dataclass(frozen=True)
class FromOutside:
    """The events of a slice: ``on_time`` and ``late`` ones, the alarms that they set, and the latest time of all."""

    on_time: Rows
    late: Rows
    alarms: Alarms
    latest: int | None


def from_outside(slice: Slice | None, log: Rows, late: int) -> FromOutside:
    """``late``: the operator's watermark, before which events are."""
    positions = () if slice is None else range(slice.start["position"], slice.end["position"])
    times = {position: _happened(position, log[position][1]) for position in positions}
    on_time = {position: log[position] for position, time in times.items() if time >= late}
    alarms: Alarms = {}
    for position, (key, value) in on_time.items():
        if value % 4 == 1:
            alarms[key] = max(alarms.get(key, BEGINNING), times[position] + value % 5 * SECOND)
    rows_late = [log[position] for position, time in times.items() if time < late]
    return FromOutside(list(on_time.values()), rows_late, alarms, max(times.values(), default=None))


def alarms_after(waiting: Alarms, set_anew: Alarms, fire: int) -> tuple[dict[int, int | None], Rows]:
    """What an epoch changes of the alarms that wait, ``None`` where one has fired, and the output of those that do."""
    fired = sorted(key for key, at in {**waiting, **set_anew}.items() if at <= fire)
    return {**set_anew, **dict.fromkeys(fired)}, [(key, ALARMED) for key in fired]


def left(waiting: Alarms, changed: Mapping[int, int | None]) -> Alarms:
    """The alarms that wait after an epoch has changed them."""
    return {key: at for key, at in {**waiting, **changed}.items() if at is not None}


def _happened(position: int, value: int) -> int:
    return (position - value % 3 * 2) * SECOND
