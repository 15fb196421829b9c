"""The audit log.

The entry of a call is stored in the first transaction that the call commits, together with what it changes. An entry
written afterwards would be lost if the control plane ended in between. Changes are collected wherever rows are flushed,
so that no command can omit them: added, changed and deleted rows are compared field by field. ``_DECIDED`` lists the
fields that people decide; hashes, secrets and counters are not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, inspect, select, update
from sqlalchemy.orm import Session

from epochal.secrets import redact
from epochal.service.catalog.models import (
    Application,
    Artifact,
    AuditEntry,
    Base,
    Branch,
    Execution,
    Operation,
    Project,
    QueryCommandRow,
    Savepoint,
    SessionLink,
    SnapshotMessage,
    SnapshotPin,
    SnapshotTag,
    Token,
    Upload,
    UserSession,
    Version,
    Webhook,
)
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part
from epochal.visible import visible
from epochal.wire.projects import DEFAULT_PROJECT, local_name


class AuditRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def settle(self, call: AuditedCall, outcome: int) -> None:
        """Complete the entry of a call that was answered with ``outcome``. The entry is created here if the call
        changed nothing: it was refused, or there was nothing to do."""
        if call.details is None:
            return
        if call.landed is None:
            self._session.add(call.details.entry(outcome))
        elif outcome != call.details.expected:
            self._session.execute(update(AuditEntry).where(AuditEntry.id == call.landed).values(outcome=outcome))

    def has_expired(self, before: datetime) -> bool:
        oldest = self._session.scalar(select(AuditEntry.at).order_by(AuditEntry.id).limit(1))
        return oldest is not None and oldest < before

    def expire(self, before: datetime, most: int) -> int:
        """Delete up to ``most`` older entries; their number. Requires a write transaction."""
        oldest = self._session.execute(select(AuditEntry.id, AuditEntry.at).order_by(AuditEntry.id).limit(most)).all()
        expired = [id for id, at in oldest if at < before]
        if expired:
            self._session.execute(delete(AuditEntry).where(AuditEntry.id.in_(expired)))
        return len(expired)

    def page(self, page: PageRequest, project: str, only: AuditFilter) -> Part:
        """Listed newest first."""
        query = select(AuditEntry).where(AuditEntry.project == project, *only.conditions())
        return paginate(self._session, query, page, [AuditEntry.id], descending=True)


@dataclass(frozen=True)
class AuditFilter:
    """Values that the listed entries have; ``None``: any. ``since`` is inclusive, ``until`` is not."""

    token: str | None = None
    action: str | None = None
    application: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        found = [
            column == value
            for column, value in (
                (AuditEntry.token, self.token),
                (AuditEntry.action, self.action),
                (AuditEntry.application, self.application),
            )
            if value is not None
        ]
        if self.since is not None:
            found.append(AuditEntry.at >= self.since)
        if self.until is not None:
            found.append(AuditEntry.at < self.until)
        return found


_LONGEST_TARGET = 500


@dataclass(frozen=True)
class Caller:
    """``token``: name of the token; ``None`` for an unauthenticated caller. ``address``: peer of the connection."""

    token: str | None
    token_id: str | None
    address: str | None


@dataclass(frozen=True)
class CallDetails:
    """``expected``: the status of the answer if the call succeeds."""

    caller: Caller
    action: str
    target: str
    expected: int
    request: str
    project: str = DEFAULT_PROJECT
    application: str | None = None
    """Name of the application in the path, within the project."""

    def entry(self, outcome: int) -> AuditEntry:
        return AuditEntry(
            at=now(),
            project=self.project,
            application=self.application,
            token=self.caller.token,
            token_id=self.caller.token_id,
            address=self.caller.address,
            action=self.action,
            target=visible(redact(self.target))[:_LONGEST_TARGET],
            outcome=outcome,
            request=self.request,
        )


class AuditedCall:
    """``details``: set once the caller is authorised. ``landed``: number of the call's entry, once a transaction with
    it is committed. ``changes``: the changes that the entry lists."""

    def __init__(self, details: CallDetails | None = None) -> None:
        self.details = details
        self.landed: int | None = None
        self.changes: Changes = {}
        self.over = False


_current: ContextVar[AuditedCall | None] = ContextVar("audited_call", default=None)


@contextmanager
def auditing(call: AuditedCall) -> Iterator[None]:
    """Attribute the transactions of this block, also of threads that it calls, to the call."""
    token = _current.set(call)
    try:
        yield
    finally:
        call.over = True
        _current.reset(token)


def call_to_record() -> AuditedCall | None:
    """The current call, once its caller is authorised."""
    call = _current.get()
    return call if call is not None and call.details is not None and not call.over else None


def watch_changes(session: Session, *_: object) -> None:
    """Collect changes before each flush of a transaction."""
    if call_to_record() is not None:
        collect_changes(session)


@dataclass(frozen=True)
class RecordedCall:
    """State of a call that takes effect when the transaction is committed."""

    call: AuditedCall
    entry: int
    changes: Changes

    def set_landed(self) -> None:
        self.call.landed, self.call.changes = self.entry, self.changes


def record_call(session: Session, call: AuditedCall) -> RecordedCall:
    """Add the call's entry, or further changes, to a transaction that is an effect of the call."""
    assert call.details is not None
    changes = {**call.changes, **changes_of(session)}
    if call.landed is not None:
        if changes != call.changes:
            mine = update(AuditEntry).where(AuditEntry.id == call.landed)
            session.execute(mine.values(changes=as_json(changes)))
        return RecordedCall(call, call.landed, changes)
    entry = call.details.entry(call.details.expected)
    entry.changes = as_json(changes)
    entry.application = entry.application or _created_application(changes)
    session.add(entry)
    session.flush()
    return RecordedCall(call, entry.id, changes)


MOST_CHANGES: Final = 40
LONGEST_VALUE: Final = 200
"""Maximum number of characters of a value as JSON; longer values are truncated."""
_KEPT: Final = "audited_changes"


@dataclass(frozen=True)
class _Kind:
    """``name``: the column that identifies a row to people."""

    noun: str
    name: str
    fields: tuple[str, ...]


_DECIDED: Final[dict[type[Base], _Kind]] = {
    Project: _Kind("project", "name", ("applications", "running", "subtasks", "deleted_at")),
    Application: _Kind("application", "name", ("branch", "shadow", "deleted_at")),
    Version: _Kind("version", "number", ("artifact", "parameters", "configuration", "message")),
    Execution: _Kind("execution", "id", ("version", "state", "available_now", "drain")),
    Branch: _Kind("branch", "id", ("kind", "parent_branch", "parent_epoch", "message")),
    Operation: _Kind("operation", "id", ("kind", "state", "arguments", "cancel_requested_by")),
    Savepoint: _Kind("savepoint", "name", ("branch", "epoch", "message")),
    SnapshotPin: _Kind("pin of epoch", "epoch", ("branch", "message")),
    SnapshotTag: _Kind("tag", "name", ("branch", "epoch", "message")),
    SnapshotMessage: _Kind("message of epoch", "epoch", ("branch", "message")),
    QueryCommandRow: _Kind("query command", "number", ("kind", "query", "text")),
    Token: _Kind("token", "name", ("id", "roles", "expires_at")),
    SessionLink: _Kind("session link", "id", ("session", "expires_at")),
    UserSession: _Kind("session", "id", ("name", "expires_at")),
    Webhook: _Kind("webhook", "id", ("url", "kinds", "applications", "disabled_at")),
    Artifact: _Kind("artifact", "sha256", ("filename", "bytes")),
    Upload: _Kind("upload", "id", ("sha256", "bytes", "received")),
}

Changes = dict[tuple[str, str], tuple[Any, Any]]
"""Values before and after, by subject and field."""


def collect_changes(session: Session) -> None:
    """Call it before each flush of a transaction; the previous values are lost afterwards."""
    kept: Changes = session.info.setdefault(_KEPT, {})
    with session.no_autoflush:
        for subject, field, before, after in _changed(session):
            first = kept.get((subject, field), (before, after))[0]
            kept[subject, field] = first, after


def _created_application(changes: Changes) -> str | None:
    """The application that a call without one in its path created."""
    noun = f"{_DECIDED[Application].noun} "
    created = [
        subject.removeprefix(noun)
        for (subject, field), (before, _) in changes.items()
        if subject.startswith(noun) and field == "branch" and before is None
    ]
    return local_name(created[0]) if len(created) == 1 else None


def changes_of(session: Session) -> Changes:
    """Changes collected in this transaction."""
    kept: Changes = session.info.get(_KEPT, {})
    return kept


def as_json(changes: Changes) -> dict[str, Any] | None:
    """Changes as they are stored: limited in number and size, without secrets. ``None`` if nothing changed."""
    found = [
        {"subject": _text(subject), "field": _text(field), "before": _bounded(before), "after": _bounded(after)}
        for (subject, field), (before, after) in changes.items()
        if before != after
    ]
    return {"items": found[:MOST_CHANGES], "left_out": max(len(found) - MOST_CHANGES, 0)} if found else None


def _changed(session: Session) -> Iterator[tuple[str, str, Any, Any]]:
    for row in session.new:
        if kind := _DECIDED.get(type(row)):
            yield from _compared(kind, row, _values(_predecessor(session, row), kind), _values(row, kind))
    for row in session.dirty:
        if kind := _DECIDED.get(type(row)):
            yield from _compared(kind, row, {**_values(row, kind), **_former(row, kind)}, _values(row, kind))
    for row in session.deleted:
        if kind := _DECIDED.get(type(row)):
            yield from _compared(kind, row, _values(row, kind), {})


def _values(row: object | None, kind: _Kind) -> dict[str, Any]:
    return {} if row is None else {field: getattr(row, field) for field in kind.fields}


def _former(row: object, kind: _Kind) -> dict[str, Any]:
    """Previous values of changed fields."""
    attributes = inspect(row, raiseerr=True).attrs
    histories = {field: attributes[field].history for field in kind.fields}
    return {field: history.deleted[0] for field, history in histories.items() if history.deleted}


def _predecessor(session: Session, row: object) -> object | None:
    """The row with which a new row is compared: for a version, the application's previous one."""
    if not isinstance(row, Version):
        return None
    mine = Version.application == row.application, Version.number < row.number, Version.failure.is_(None)
    return session.scalars(select(Version).where(*mine).order_by(Version.number.desc()).limit(1)).first()


def _compared(
    kind: _Kind, row: object, before: dict[str, Any], after: dict[str, Any]
) -> Iterator[tuple[str, str, Any, Any]]:
    subject = f"{kind.noun} {getattr(row, kind.name)}"
    for field in kind.fields:
        first, second = before.get(field), after.get(field)
        if isinstance(first, dict) or isinstance(second, dict):
            former, latter = first or {}, second or {}
            for name in dict.fromkeys([*former, *latter]):
                yield subject, f"{field}.{name}", former.get(name), latter.get(name)
        else:
            yield subject, field, first, second


def _bounded(value: Any) -> Any:
    cleaned = _cleaned(value)
    text = cleaned if isinstance(cleaned, str) else json.dumps(cleaned, ensure_ascii=False)
    if len(text) <= LONGEST_VALUE:
        return cleaned
    return f"{text[:LONGEST_VALUE]}.. ({len(text)} characters)"


def _cleaned(value: Any) -> Any:
    """The value as JSON, with secrets removed."""
    match value:
        case None | bool() | int() | float():
            return value
        case datetime():
            return value.isoformat()
        case dict():
            return {_text(str(name)): _cleaned(item) for name, item in value.items()}
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case _:
            return visible(redact(str(value)))


def _text(name: str) -> str:
    return visible(redact(name))[:LONGEST_VALUE]
