"""Calls that were made with an Idempotency-Key, what has become of them, and their answers.

Whoever makes a call holds a claim on its key, which it renews. The first transaction of the call that changes something
says so in the key's row, and lands only while the claim is held: so of two that make the same call, one after the other
was thought to be gone, one has an effect, and of a call whose maker is gone it is known whether it had any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, cast

from sqlalchemy import CursorResult, delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from epochal.errors import CallInProgress, CallOutcomeUnknown, InvalidInput
from epochal.service.catalog.models import IdempotencyKey
from epochal.service.catalog.types import DatabaseClock, database_now
from epochal.service.domain.identifiers import new_id

RENEW_SECONDS = 5.0
_ABANDONED_AFTER = timedelta(seconds=20)
"""A claim that was not renewed for so long, by the database's clock, may be taken over."""
_OUTCOME_UNKNOWN = (
    "The control plane that made the first call with this Idempotency-Key has ended, or failed, before it could store "
    "the answer, and the call may have changed something. It is not made again: look at what is there (`epochal show`, "
    "`epochal operations list`); to have it done again, call with a new key."
)


class IdempotencyKeyReused(InvalidInput):
    """The Idempotency-Key was used for another request; use a new one."""

    slug = "idempotency-key-reused"


@dataclass(frozen=True)
class StoredAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class KeyClaim:
    """The right to make the call of one key. ``acted``: a transaction of it has landed."""

    token: str
    key: str
    holder: str = field(default_factory=new_id)
    acted: bool = False

    @property
    def _row(self) -> Any:
        mine = IdempotencyKey.token == self.token, IdempotencyKey.key == self.key, IdempotencyKey.holder == self.holder
        return (*mine, IdempotencyKey.status.is_(None))


_current: ContextVar[KeyClaim | None] = ContextVar("key_claim", default=None)


@contextmanager
def making(claim: KeyClaim | None) -> Iterator[None]:
    """What is committed within, in this task and in threads that it calls, is the call's effect; ``None``: nobody's."""
    token = _current.set(claim)
    try:
        yield
    finally:
        _current.reset(token)


def current_claim() -> KeyClaim | None:
    """That of the call which is being made, unless it has acted already."""
    claim = _current.get()
    return None if claim is None or claim.acted else claim


def record_effect(session: Session, claim: KeyClaim) -> None:
    """In the transaction that is the call's effect. Raises ``CallInProgress`` when another one makes the call."""
    acting = update(IdempotencyKey).where(*claim._row).values(acted_at=DatabaseClock())
    if cast(CursorResult[Any], session.execute(acting)).rowcount == 0:
        raise CallInProgress


class Transactions(Protocol):
    """What is needed of ``Database``, which imports this module to record the effects of calls."""

    def writing(self) -> AbstractContextManager[Session]: ...


class IdempotencyKeys:
    """Which keys were used, by token; ``kept_for``: for how long they are remembered."""

    def __init__(self, database: Transactions, kept_for: timedelta) -> None:
        self._database = database
        self._kept_for = kept_for

    def claim(self, token: str, key: str, request: str) -> StoredAnswer | KeyClaim:
        """The stored answer; or the claim of whoever is to make the call.

        Raises ``CallInProgress``, ``CallOutcomeUnknown``, ``IdempotencyKeyReused``.
        """
        claim = KeyClaim(token, key)
        with self._database.writing() as session:
            moment = database_now(session)
            session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < moment - self._kept_for))
            row = session.get(IdempotencyKey, (token, key), with_for_update=True)
            if row is None:
                row = IdempotencyKey(token=token, key=key, request_sha256=request, created_at=moment)
                row.holder = claim.holder
                session.add(row)
                try:
                    session.flush()
                except IntegrityError as error:  # it came twice at the same moment
                    raise CallInProgress from error
                return claim
            if row.request_sha256 != request:
                raise IdempotencyKeyReused
            if row.status is not None and row.headers is not None and row.body is not None:
                return StoredAnswer(row.status, [(name, value) for name, value in row.headers["items"]], row.body)
            if row.created_at >= moment - _ABANDONED_AFTER and not (row.holder is None and row.acted_at is not None):
                raise CallInProgress
            if row.acted_at is not None or row.holder is None:
                raise CallOutcomeUnknown(_OUTCOME_UNKNOWN)
            row.holder, row.created_at = claim.holder, moment
            return claim

    def renew(self, claim: KeyClaim) -> None:
        """The call is still being made."""
        with self._database.writing() as session:
            session.execute(update(IdempotencyKey).where(*claim._row).values(created_at=DatabaseClock()))

    def keep(self, claim: KeyClaim, answer: StoredAnswer) -> None:
        """Nothing, when another one makes the call."""
        kept = {
            IdempotencyKey.status: answer.status,
            IdempotencyKey.headers: {"items": [list(item) for item in answer.headers]},
            IdempotencyKey.body: answer.body,
        }
        with self._database.writing() as session:
            session.execute(update(IdempotencyKey).where(*claim._row).values(kept))

    def release(self, claim: KeyClaim) -> None:
        """The call has failed: it may be made again, unless it had an effect."""
        with self._database.writing() as session:
            session.execute(delete(IdempotencyKey).where(*claim._row, IdempotencyKey.acted_at.is_(None)))
            session.execute(update(IdempotencyKey).where(*claim._row).values(holder=None))
