"""Calls with an Idempotency-Key, and their answers.

The process that makes a call holds a claim on its key and renews it. The first transaction of the call that changes
something records this in the key's row, and is committed only while the claim is held. Therefore at most one of two
processes that make the same call has an effect, and it is known whether an abandoned call had an effect.
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
"""A claim that was not renewed for this time, by the database clock, can be taken over."""
_OUTCOME_UNKNOWN = (
    "The control plane that made the first call with this Idempotency-Key ended or failed before it stored the "
    "answer, and the call may have had an effect. It is not repeated: check the current state (`epochal show`, "
    "`epochal operations list`), and use a new key to repeat the call."
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
    """The right to make the call of one key. ``acted``: one of its transactions has been committed."""

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
    """Attribute the transactions of this block, also of threads that it calls, to the call; ``None``: to no call."""
    token = _current.set(claim)
    try:
        yield
    finally:
        _current.reset(token)


def current_claim() -> KeyClaim | None:
    """The claim of the current call, unless the call has already had an effect."""
    claim = _current.get()
    return None if claim is None or claim.acted else claim


def record_effect(session: Session, claim: KeyClaim) -> None:
    """Record that this transaction is an effect of the call. Raises ``CallInProgress`` if another process makes the
    call."""
    acting = update(IdempotencyKey).where(*claim._row).values(acted_at=DatabaseClock())
    if cast(CursorResult[Any], session.execute(acting)).rowcount == 0:
        raise CallInProgress


class Transactions(Protocol):
    """The part of ``Database`` that is needed here. ``Database`` imports this module to record the effects of calls."""

    def writing(self) -> AbstractContextManager[Session]: ...


class IdempotencyKeys:
    """Used keys by token, remembered for ``kept_for``."""

    def __init__(self, database: Transactions, kept_for: timedelta) -> None:
        self._database = database
        self._kept_for = kept_for

    def claim(self, token: str, key: str, request: str) -> StoredAnswer | KeyClaim:
        """The stored answer, or a claim to make the call.

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
                except IntegrityError as error:  # a concurrent call with the same key
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
        """Extend the claim while the call is being made."""
        with self._database.writing() as session:
            session.execute(update(IdempotencyKey).where(*claim._row).values(created_at=DatabaseClock()))

    def keep(self, claim: KeyClaim, answer: StoredAnswer) -> None:
        """Store the answer, unless another process makes the call."""
        kept = {
            IdempotencyKey.status: answer.status,
            IdempotencyKey.headers: {"items": [list(item) for item in answer.headers]},
            IdempotencyKey.body: answer.body,
        }
        with self._database.writing() as session:
            session.execute(update(IdempotencyKey).where(*claim._row).values(kept))

    def release(self, claim: KeyClaim) -> None:
        """End the claim of a failed call. The call may be repeated unless it had an effect."""
        with self._database.writing() as session:
            session.execute(delete(IdempotencyKey).where(*claim._row, IdempotencyKey.acted_at.is_(None)))
            session.execute(update(IdempotencyKey).where(*claim._row).values(holder=None))
