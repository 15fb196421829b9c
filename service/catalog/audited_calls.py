"""The call that is being made, for the audit log: its entry is part of the transaction that changes something.

An entry that was written afterwards would be missing of a control plane that died between the two, and of whoever sees
to that. The first transaction of a call that lands takes the entry with it, so that there is no change without one, and
each takes with it what it has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sqlalchemy import update
from sqlalchemy.orm import Session

from epochal.secrets import redact
from epochal.service.catalog.audited_changes import Changes, as_json, changes_of, collect_changes
from epochal.service.catalog.models import AuditEntry
from epochal.service.catalog.types import now
from epochal.visible import visible
from epochal.wire.projects import DEFAULT_PROJECT

_LONGEST_TARGET = 500


@dataclass(frozen=True)
class Caller:
    """``token``: its name; without one, nobody was authenticated. ``address``: of the other end of the connection."""

    token: str | None
    token_id: str | None
    address: str | None


@dataclass(frozen=True)
class CallDetails:
    """``expected``: the status that it is answered with when all goes well."""

    caller: Caller
    action: str
    target: str
    expected: int
    request: str
    project: str = DEFAULT_PROJECT

    def entry(self, outcome: int) -> AuditEntry:
        return AuditEntry(
            at=now(),
            project=self.project,
            token=self.caller.token,
            token_id=self.caller.token_id,
            address=self.caller.address,
            action=self.action,
            target=visible(redact(self.target))[:_LONGEST_TARGET],
            outcome=outcome,
            request=self.request,
        )


class AuditedCall:
    """``details``: what the call is, once it is known that its caller may make it. ``landed``: its entry's number, once
    a transaction with it was committed; ``changes``: what the entry says that the call has changed."""

    def __init__(self, details: CallDetails | None = None) -> None:
        self.details = details
        self.landed: int | None = None
        self.changes: Changes = {}
        self.over = False


_current: ContextVar[AuditedCall | None] = ContextVar("audited_call", default=None)


@contextmanager
def auditing(call: AuditedCall) -> Iterator[None]:
    """What is committed within, in this task and in threads that it calls, is the call's effect."""
    token = _current.set(call)
    try:
        yield
    finally:
        call.over = True
        _current.reset(token)


def call_to_note() -> AuditedCall | None:
    """The call that is being made, once it is known that its caller may make it."""
    call = _current.get()
    return call if call is not None and call.details is not None and not call.over else None


def watch_changes(session: Session, *_: object) -> None:
    """Before each flush of a transaction."""
    if call_to_note() is not None:
        collect_changes(session)


@dataclass(frozen=True)
class Noted:
    """What is so of a call as soon as the transaction is committed."""

    call: AuditedCall
    entry: int
    changes: Changes

    def landed(self) -> None:
        self.call.landed, self.call.changes = self.entry, self.changes


def note_call(session: Session, call: AuditedCall) -> Noted:
    """In a transaction that is an effect of the call: its entry, or what is to be added to it."""
    assert call.details is not None
    changes = {**call.changes, **changes_of(session)}
    if call.landed is not None:
        if changes != call.changes:
            mine = update(AuditEntry).where(AuditEntry.id == call.landed)
            session.execute(mine.values(changes=as_json(changes)))
        return Noted(call, call.landed, changes)
    entry = call.details.entry(call.details.expected)
    entry.changes = as_json(changes)
    session.add(entry)
    session.flush()
    return Noted(call, entry.id, changes)
