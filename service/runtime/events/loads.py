"""Events of kind ``load``: what applications are behind with, for the streams of this process that select them.

They are derived from the latest reports of the drivers and are not stored. A load is a value that the next one
replaces, and each application has a new one every few seconds: stored, they would be a write for each report and would
displace the other events, of which the latest 10,000 of an application are retained. The reports are in the catalog, so
that each control plane has the same loads without receiving them from another one, and reads them only while a stream
selects them.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from epochal.service.catalog.database import Database
from epochal.service.catalog.events import EventEntry, EventFilter
from epochal.service.catalog.lags import current_moments, current_reports, lag_answer
from epochal.service.catalog.types import now
from epochal.service.domain.events import LOAD
from epochal.wire.applications import ApplicationLag
from epochal.wire.projects import project_of

LOAD_SECONDS = 10.0
"""Minimum time between two events of an application."""
LOOK_SECONDS = 1.0
"""Minimum time between two looks at the reports."""
SHOWN_SHARE = 0.01
"""Share by which a number must change to be shown again."""
_ENDED_SECONDS = 60.0
"""Time after which an application without a report is forgotten."""


@dataclass
class _Sent:
    name: str
    lag: ApplicationLag
    reported_at: datetime | None
    """Time of the report that was compared last; ``None``: no driver runs that has reported."""
    at: float


class LoadChanges:
    """Decides which loads are sent. Times without a zone are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def due(self, reports: Mapping[str, tuple[str, datetime]], moment: float) -> Mapping[str, str]:
        """Names of the applications, by id, whose load has to be compared: there is a new report, or none any more, and
        the last event is old enough. Forgets applications that ended a while ago."""
        for id, sent in list(self._sent.items()):
            if id not in reports and sent.reported_at is None and moment - sent.at >= _ENDED_SECONDS:
                del self._sent[id]
        found = {}
        for id, (name, reported_at) in reports.items():
            known = self._sent.get(id)
            if known is None or (known.reported_at != reported_at and moment - known.at >= LOAD_SECONDS):
                found[id] = name
        for id, sent in self._sent.items():
            if id not in reports and sent.reported_at is not None and moment - sent.at >= LOAD_SECONDS:
                found[id] = sent.name
        return found

    def changed(self, id: str, name: str, lag: ApplicationLag, moment: float) -> bool:
        """Return whether this load of a due application is sent."""
        known = self._sent.get(id)
        if known is not None and not differs(known.lag, lag):
            known.reported_at = lag.reported_at
            return False
        self._sent[id] = _Sent(name, lag, lag.reported_at, moment)
        return True


def differs(before: ApplicationLag, after: ApplicationLag) -> bool:
    """Return whether a viewer sees a difference, apart from the time of the report."""
    if (before.reported_at is None) != (after.reported_at is None):
        return True
    if (before.blocked_sinks, before.store_away_since) != (after.blocked_sinks, after.store_away_since):
        return True
    if _moved(before.rows_per_second, after.rows_per_second) or before.sources.keys() != after.sources.keys():
        return True
    return any(
        source.reachable != (other := after.sources[name]).reachable
        or _moved(source.records, other.records)
        or _moved(source.files, other.files)
        or _moved(source.seconds, other.seconds)
        for name, source in before.sources.items()
    )


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > SHOWN_SHARE * max(abs(before), abs(after))


class LoadFeed:
    """The latest load of each application. :meth:`look` is called by one thread, the other methods by any."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._streams = 0
        self._looked = float("-inf")
        self._changes = LoadChanges()
        self._position = 0
        self._entries: tuple[EventEntry, ...] = ()
        """At most one of each application, by position."""

    @contextmanager
    def following(self, chosen: EventFilter) -> Iterator[None]:
        """Count a stream, if it selects loads, for the duration of the block. Called by the event loop alone."""
        more = int(chosen.takes_loads)
        self._streams += more
        try:
            yield
        finally:
            self._streams -= more

    def after(self, position: int, chosen: EventFilter) -> Sequence[EventEntry]:
        """Loads after ``position``, the position of the last one that was delivered; 0 for all."""
        if not chosen.takes_loads:
            return ()
        entries = self._entries
        newer = entries[bisect_right(entries, position, key=lambda entry: entry.position) :]
        return [entry for entry in newer if chosen.takes(entry)]

    def look(self) -> bool:
        """Read new reports, if a stream selects loads. Returns whether there are new loads."""
        moment = self._clock()
        if self._streams == 0:
            self._changes, self._entries = LoadChanges(), ()
            return False
        if moment - self._looked < LOOK_SECONDS:
            return False
        self._looked = moment
        with self._database.reading() as session:
            due = self._changes.due(current_reports(session), moment)
            moments = current_moments(session, due) if due else {}
        at = now()
        lags = {id: (name, lag_answer(name, moments.get(id), at)) for id, name in due.items()}
        changed = [pair for id, pair in lags.items() if self._changes.changed(id, *pair, moment)]
        self._add(changed, at)
        return bool(changed)

    def _add(self, lags: Iterable[tuple[str, ApplicationLag]], at: datetime) -> None:
        latest = {entry.application: entry for entry in self._entries}
        for name, lag in lags:
            self._position += 1
            latest.pop(name, None)
            latest[name] = EventEntry(self._position, name, 0, LOAD, _encoded(name, lag, at))
        self._entries = tuple(latest.values())


def _encoded(name: str, lag: ApplicationLag, at: datetime) -> bytes:
    data = lag.model_dump(mode="json")
    named = {"application": data.pop("application"), "at": at.isoformat(), "project": project_of(name)}
    return json.dumps(named | data, separators=(",", ":"), ensure_ascii=False).encode()
