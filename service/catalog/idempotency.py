"""Calls that were made with an Idempotency-Key, and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete

from epochal.errors import Conflict, InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import IdempotencyKey
from epochal.service.catalog.types import database_now

RENEW_SECONDS = 5.0
_ABANDONED_AFTER = timedelta(seconds=20)
"""A call that nobody works on any more (its control plane is gone, or could not store the answer) may then be made
again."""


class IdempotencyKeyReused(InvalidInput):
    """The Idempotency-Key was used for another request; use a new one."""

    slug = "idempotency-key-reused"


@dataclass(frozen=True)
class StoredAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class IdempotencyKeys:
    """Which keys were used, by token; ``kept_for``: for how long they are remembered."""

    def __init__(self, database: Database, kept_for: timedelta) -> None:
        self._database = database
        self._kept_for = kept_for

    def claim(self, token: str, key: str, request: str) -> StoredAnswer | None:
        """The stored answer, or ``None``: then the key is claimed for this call."""
        with self._database.writing() as session:
            moment = database_now(session)
            session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < moment - self._kept_for))
            row = session.get(IdempotencyKey, (token, key), with_for_update=True)
            if row is not None and row.status is None and row.created_at < moment - _ABANDONED_AFTER:
                session.delete(row)
                session.flush()
                row = None
            if row is None:
                session.add(IdempotencyKey(token=token, key=key, request_sha256=request, created_at=moment))
                return None
            if row.request_sha256 != request:
                raise IdempotencyKeyReused
            if row.status is None or row.headers is None or row.body is None:
                raise Conflict(
                    "The first call with this Idempotency-Key is still being worked on; wait for its answer."
                )
            return StoredAnswer(row.status, [(name, value) for name, value in row.headers["items"]], row.body)

    def renew(self, token: str, key: str) -> None:
        """It is still being worked on."""
        with self._database.writing() as session:
            row = session.get(IdempotencyKey, (token, key), with_for_update=True)
            if row is not None and row.status is None:
                row.created_at = database_now(session)

    def keep(self, token: str, key: str, answer: StoredAnswer) -> None:
        with self._database.writing() as session:
            row = session.get(IdempotencyKey, (token, key), with_for_update=True)
            if row is None:
                return  # it counted as abandoned, and was made again
            row.status = answer.status
            row.headers = {"items": [list(item) for item in answer.headers]}
            row.body = answer.body

    def release(self, token: str, key: str) -> None:
        with self._database.writing() as session:
            session.execute(delete(IdempotencyKey).where(IdempotencyKey.token == token, IdempotencyKey.key == key))
