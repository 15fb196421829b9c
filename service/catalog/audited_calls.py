"""The call that is being made, for the audit log: its entry is part of the transaction that changes something.

An entry that was written afterwards would be missing of a control plane that died between the two, and of whoever sees
to that. The first transaction of a call that lands takes the entry with it, so that there is no change without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sqlalchemy.orm import Session

from epochal.secrets import redact
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
    a transaction with it was committed."""

    def __init__(self, details: CallDetails | None = None) -> None:
        self.details = details
        self.landed: int | None = None
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
    """The call that is being made, unless its entry has landed already."""
    call = _current.get()
    return call if call is not None and call.details is not None and call.landed is None and not call.over else None


def note_call(session: Session, call: AuditedCall) -> AuditEntry:
    """In the transaction that is the call's effect."""
    assert call.details is not None
    entry = call.details.entry(call.details.expected)
    session.add(entry)
    session.flush()
    return entry
