"""Events, stored in the transaction of the change that they report.

``record`` adds an event to the session, and ``Database.writing`` stores recorded events as the last statements of the
transaction. These lock the application's row in ``event_streams``, so that numbers increase by one and become visible
in order. The transaction takes no further lock after it, so it cannot take part in a deadlock. The row is separate from
the application's row; it outlives the application, and there is one for events without an application.

The stream of all applications is ordered by ``position``. On SQLite, which has one writer, the position is assigned
when an event is stored. On PostgreSQL a common counter would serialise all commits, so one process at a time assigns
positions to committed events (:meth:`EventRepository.assign_positions`) before they are read. A reader that has seen a
position has seen all earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, Row, bindparam, delete, insert, select, text, update
from sqlalchemy.orm import Session

from epochal.contracts.catalog import TransactionOrder
from epochal.contracts.measurements import StragglerMove
from epochal.errors import EventsExpired
from epochal.service.catalog.models import Epoch, EventStream, Execution, LoggedEvent, Operation, Savepoint
from epochal.service.catalog.records import epoch_record
from epochal.service.catalog.types import UtcDateTime, now
from epochal.service.domain.events import LOAD, ControlEvent, EventKind
from epochal.wire.projects import DEFAULT_PROJECT, full_name, local_name, project_of

ALL = "*"
"""Row in ``event_streams`` of the stream of all applications, whose numbers are positions."""
_RECORDED = "epochal.events"
_NUMBER = (
    "INSERT INTO event_streams (application, last) VALUES {values} ON CONFLICT (application) "
    "DO UPDATE SET last = event_streams.last + excluded.last RETURNING application, last"
)
_NUMBER_ONE = text(_NUMBER.format(values="(:application, :more)"))
_NUMBER_BOTH = text(_NUMBER.format(values=f"(:application, :more), ('{ALL}', :more)"))
_INSERT = insert(LoggedEvent.__table__)  # type: ignore[arg-type]
# PostgreSQL: both statements in one, for the frequent case of one event per transaction.
_NUMBER_AND_INSERT = text(
    f"WITH stream AS ({_NUMBER.format(values='(:application, :more)')}) "
    "INSERT INTO events (application, number, kind, at, data) "
    "SELECT :application, stream.last, :kind, :at, :data FROM stream"
).bindparams(bindparam("at", type_=UtcDateTime))
_LOCK = text("SELECT last FROM event_streams WHERE application = :application FOR UPDATE")
# The events of an application keep the order of their numbers, even if the clocks of two control planes differ.
_ASSIGN = text(
    """
    WITH waiting AS (
        SELECT application, number, max(at) OVER (PARTITION BY application ORDER BY number) AS since
        FROM events WHERE position IS NULL
    ), chosen AS (
        SELECT application, number, row_number() OVER (ORDER BY since, application, number) AS place
        FROM waiting ORDER BY since, application, number LIMIT :most
    )
    UPDATE events SET position = :last + chosen.place FROM chosen
    WHERE events.application = chosen.application AND events.number = chosen.number
    """
)
_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class EventEntry:
    """One event as it is sent to clients. ``data`` is JSON in one line. (application, number) identifies it."""

    position: int
    application: str
    """Empty for events without an application."""
    number: int
    """0 for events that are not stored."""
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selection of events; ``None`` selects all, except those of kind ``load``. Events without an application belong to
    the project ``default``."""

    applications: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    project: str | None = None

    @property
    def takes_loads(self) -> bool:
        return self.kinds is not None and LOAD in self.kinds

    def takes(self, entry: EventEntry) -> bool:
        return (
            (self.applications is None or entry.application in self.applications)
            and (self.kinds is None or entry.kind in self.kinds)
            and (self.project is None or project_of(entry.application) == self.project)
        )


def record(session: Session, event: ControlEvent) -> None:
    """Store the event with the other changes of this transaction."""
    session.info.setdefault(_RECORDED, []).append(event)


def write_recorded(session: Session) -> Sequence[ControlEvent]:
    """Store the recorded events as the last statements of a transaction, and return them."""
    recorded: list[ControlEvent] = session.info.pop(_RECORDED, [])
    for application in sorted({event.application or "" for event in recorded}):
        _write(session, application, [event for event in recorded if (event.application or "") == application])
    return recorded


def discard_recorded(session: Session) -> None:
    session.info.pop(_RECORDED, None)


def encoded(event: ControlEvent) -> str:
    data = {"application": event.application, "at": event.at.isoformat()} | event.data
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def _write(session: Session, application: str, events: Sequence[ControlEvent]) -> None:
    positioned = _is_sqlite(session)
    more = {"application": application, "more": len(events)}
    connection = session.connection()
    if len(events) == 1 and not positioned:
        (event,) = events
        connection.execute(_NUMBER_AND_INSERT, more | {"kind": event.kind, "at": event.at, "data": encoded(event)})
        return
    last = {row[0]: row[1] for row in connection.execute(_NUMBER_BOTH if positioned else _NUMBER_ONE, more)}
    number = last[application] - len(events)
    position = last[ALL] - len(events) if positioned else None
    rows = [
        {
            "application": application,
            "number": number + place,
            "position": None if position is None else position + place,
            "kind": event.kind,
            "at": event.at,
            "data": encoded(event),
        }
        for place, event in enumerate(events, 1)
    ]
    connection.execute(_INSERT, rows)


class EventRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def assign_positions(self, most: int = _AT_ONCE) -> int:
        """Assign positions to up to ``most`` events without one; returns their number. Requires a write transaction."""
        if _is_sqlite(self._session):
            return 0
        self._session.execute(
            text("INSERT INTO event_streams (application, last) VALUES (:all, 0) ON CONFLICT DO NOTHING"), {"all": ALL}
        )
        last = self._session.scalars(_LOCK, {"application": ALL}).one()
        assigned = cast("CursorResult[Any]", self._session.execute(_ASSIGN, {"most": most, "last": last})).rowcount
        if assigned:
            stream = update(EventStream).where(EventStream.application == ALL)
            self._session.execute(stream.values(last=last + assigned))
        return assigned

    def lacks_positions(self) -> bool:
        query = select(LoggedEvent.number).where(LoggedEvent.position.is_(None)).limit(1)
        return not _is_sqlite(self._session) and self._session.scalar(query) is not None

    def position(self, application: str, number: int) -> int:
        """Position after event ``number`` in the stream of this application. Raises ``EventsExpired``."""
        self._check(application, number)
        return self._position(application, number) or 0

    def position_of_all(self, application: str, number: int) -> int:
        """Position after this event in the stream of all applications. Raises ``EventsExpired``."""
        self._check(application, number)
        found = 0 if number == 0 else self._position(application, number)
        if found is None or found < self.expired(ALL):
            raise EventsExpired(
                f"Events after {application}/{number} have expired. Read the current state, and listen without "
                "Last-Event-ID and `after`."
            )
        return found

    def after(self, position: int, chosen: EventFilter, most: int) -> tuple[list[EventEntry], int]:
        """Up to ``most`` events after ``position``, oldest first, and the position reached."""
        last = self.last(ALL)
        query = select(
            LoggedEvent.position, LoggedEvent.application, LoggedEvent.number, LoggedEvent.kind, LoggedEvent.data
        ).where(LoggedEvent.position > position, LoggedEvent.position <= last)
        if chosen.applications is not None:
            query = query.where(LoggedEvent.application.in_(sorted(chosen.applications)))
        if chosen.project == DEFAULT_PROJECT:
            query = query.where(~LoggedEvent.application.contains("."))
        elif chosen.project is not None:
            query = query.where(LoggedEvent.application.startswith(full_name(chosen.project, ""), autoescape=True))
        if chosen.kinds is not None:
            query = query.where(LoggedEvent.kind.in_(sorted(chosen.kinds)))
        rows = self._session.execute(query.order_by(LoggedEvent.position).limit(most)).all()
        entries = [EventEntry(row[0] or 0, row[1], row[2], row[3], row[4].encode()) for row in rows]
        return entries, entries[-1].position if len(entries) == most else max(last, position)

    def last(self, application: str) -> int:
        """Number of the application's newest event; 0 if it has none. For ``ALL``: the last position."""
        return self._session.scalar(select(EventStream.last).where(EventStream.application == application)) or 0

    def expired(self, application: str) -> int:
        """Number up to which the application's events are deleted; 0 if none are. For ``ALL``: the highest position of
        a deleted event."""
        return self._session.scalar(select(EventStream.expired).where(EventStream.application == application)) or 0

    def expirable(self, kept: int, before: datetime) -> Mapping[str, int]:
        """Number up to which events may be deleted, by application: all but the last ``kept`` events, and events before
        ``before``. The last event of each application is kept."""
        streams = select(EventStream.application, EventStream.last, EventStream.expired)
        found = {}
        for application, last, expired in self._session.execute(streams.where(EventStream.application != ALL)).all():
            newest = min(max(last - kept, self._old(application, expired, before)), last - 1)
            if newest > expired:
                found[application] = newest
        return found

    def remove(self, application: str, newest: int, most: int) -> int:
        """Delete up to ``most`` of its oldest events up to number ``newest``; their number. Requires a write
        transaction."""
        self._lock_all()
        mine = LoggedEvent.application == application, LoggedEvent.number <= newest
        query = select(LoggedEvent.number, LoggedEvent.position).where(*mine, LoggedEvent.position.is_not(None))
        rows = self._session.execute(query.order_by(LoggedEvent.number).limit(most)).all()
        if rows:
            number, position = rows[-1]
            self._session.execute(
                delete(LoggedEvent).where(LoggedEvent.application == application, LoggedEvent.number <= number)
            )
            self._raise_expired(application, number)
            self._raise_expired(ALL, position or 0)
        return len(rows)

    def number_at(self, application: str, position: int) -> int:
        """Number of the application's last event up to this position; 0 if there is none."""
        query = select(LoggedEvent.number).where(
            LoggedEvent.application == application, LoggedEvent.position <= position
        )
        return self._session.scalars(query.order_by(LoggedEvent.number.desc()).limit(1)).first() or 0

    def _check(self, application: str, number: int) -> None:
        found = self._session.execute(
            select(EventStream.last, EventStream.expired).where(EventStream.application == application)
        ).one_or_none()
        last, expired = (0, 0) if found is None else found
        if expired <= number <= last:
            return
        of = f"of {application!r}" if application else "without an application"
        if number < expired:
            raise EventsExpired(
                f"Events {of} up to number {expired} have expired; the last one seen was {number}. Read the "
                f"current state, and listen without Last-Event-ID and `after`, or from {expired} on."
            )
        raise EventsExpired(
            f"Event {number} is not among the events {of}, the last of which is {last}: the id belongs to another "
            "catalog, or to an earlier incarnation of this one. Read the current state, and listen without "
            "Last-Event-ID and `after`."
        )

    def _position(self, application: str, number: int) -> int | None:
        query = select(LoggedEvent.position).where(LoggedEvent.application == application, LoggedEvent.number <= number)
        return self._session.scalars(query.order_by(LoggedEvent.number.desc()).limit(1)).first()

    def _lock_all(self) -> None:
        if not _is_sqlite(self._session):
            self._session.scalars(_LOCK, {"application": ALL}).first()

    def _old(self, application: str, newest: int, before: datetime) -> int:
        """The last number after ``newest`` up to which all events are older."""
        while True:
            query = select(LoggedEvent.number, LoggedEvent.at).where(
                LoggedEvent.application == application, LoggedEvent.number > newest
            )
            rows = self._session.execute(query.order_by(LoggedEvent.number).limit(_AT_ONCE)).all()
            for number, at in rows:
                if at >= before:
                    return newest
                newest = number
            if len(rows) < _AT_ONCE:
                return newest

    def _raise_expired(self, application: str, newest: int) -> None:
        stream = update(EventStream).where(EventStream.application == application, EventStream.expired < newest)
        self._session.execute(stream.values(expired=newest))


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"


def announce_epoch(session: Session, application: str, row: Epoch | Row[Any]) -> None:
    _announce(session, "epoch", application, epoch_record(row).model_dump(mode="json", exclude_none=True))


def announce_execution(session: Session, application: str, row: Execution) -> None:
    data: dict[str, object] = {
        "id": row.id,
        "state": row.state,
        "attempt": row.attempt,
        "version": row.version,
        "branch": row.branch,
        "failure": row.failure,
    }
    _announce(session, "execution", application, data)


def announce_operation(session: Session, application: str | None, row: Operation) -> None:
    data: dict[str, object] = {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "result": row.result,
        "error": row.error,
    }
    _announce(session, "operation", application, data)


def announce_savepoint(session: Session, application: str, row: Savepoint, *, deleted: bool = False) -> None:
    data: dict[str, object] = {"name": row.name, "branch": row.branch, "epoch": row.epoch, "deleted": deleted}
    _announce(session, "savepoint", application, data)


def announce_straggler(session: Session, application: str, move: StragglerMove) -> None:
    _announce(session, "straggler", application, move.model_dump(mode="json"))


def announce_blocked(session: Session, application: str, sink: str, since: datetime | None) -> None:
    """``since``: time since which commits of the sink fail; ``None``: they do not fail any more."""
    blocked_since = None if since is None else since.isoformat()
    state = "free" if since is None else "blocked"
    _announce(session, "transaction", application, {"state": state, "sink": sink, "blocked_since": blocked_since})


def announce_decision(session: Session, application: str, order: TransactionOrder) -> None:
    """The driver has carried out an administrator's order."""
    _announce(session, "transaction", application, {"state": "decided", **order.model_dump(mode="json")})


def _announce(session: Session, kind: EventKind, application: str | None, data: dict[str, object]) -> None:
    named: dict[str, object] = {"application": application}
    if application is not None:
        named = {"application": local_name(application), "project": project_of(application)}
    record(session, ControlEvent(kind=kind, application=application, data={**named, **data}, at=now()))
