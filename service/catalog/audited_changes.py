"""What a call has changed of what people decide, from before to after: seen where it is written, so that no command can
leave it out.

Rows that the transaction adds, changes or removes are compared, field by field, whenever they are flushed. Which fields
are decided by people stands in one table below: hashes, secrets and what the control plane counts are not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from epochal.secrets import redact
from epochal.service.catalog.models import (
    Application,
    Artifact,
    Base,
    Branch,
    Execution,
    Operation,
    Project,
    QueryCommandRow,
    Savepoint,
    SnapshotMessage,
    SnapshotPin,
    SnapshotTag,
    Token,
    Upload,
    Version,
    Webhook,
)
from epochal.visible import visible

MOST_CHANGES: Final = 40
LONGEST_VALUE: Final = 200
"""Characters of a value, as JSON. What is longer is cut."""
_KEPT: Final = "audited_changes"


@dataclass(frozen=True)
class _Kind:
    """``name``: the column by which people know such a row."""

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
    Webhook: _Kind("webhook", "id", ("url", "kinds", "applications", "disabled_at")),
    Artifact: _Kind("artifact", "sha256", ("filename", "bytes")),
    Upload: _Kind("upload", "id", ("sha256", "bytes", "received")),
}

Changes = dict[tuple[str, str], tuple[Any, Any]]
"""By subject and field: before, after."""


def collect_changes(session: Session) -> None:
    """To be called before each flush of a transaction: afterwards nobody knows any more what was there before."""
    kept: Changes = session.info.setdefault(_KEPT, {})
    with session.no_autoflush:
        for subject, field, before, after in _changed(session):
            first = kept.get((subject, field), (before, after))[0]
            kept[subject, field] = first, after


def changes_of(session: Session) -> Changes:
    """What was collected in this transaction."""
    kept: Changes = session.info.get(_KEPT, {})
    return kept


def as_json(changes: Changes) -> dict[str, Any] | None:
    """As it is kept, bounded and without secrets; ``None`` where nothing has changed."""
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
    """Of the fields that were given another value: the one before."""
    attributes = inspect(row, raiseerr=True).attrs
    histories = {field: attributes[field].history for field in kind.fields}
    return {field: history.deleted[0] for field, history in histories.items() if history.deleted}


def _predecessor(session: Session, row: object) -> object | None:
    """With what a row is compared that is added: an application's version with the one that ran before it."""
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
    """As JSON has it, without what nobody may see."""
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
