"""Drivers' logs in the store, and the attempts that wrote them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import NotFound
from epochal.service.catalog.models import Application, Attempt, Execution, StoreFile
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import database_now

_AT_ONCE = 400


@dataclass(frozen=True)
class AttemptOfLog:
    """``is_over``: the driver has ended or was given up. ``is_deleted``: the application is deleted."""

    is_over: bool
    is_deleted: bool


def owner_of(execution: str, attempt: int) -> str:
    return f"{execution}-{attempt}"


class DriverLogs:
    def __init__(self, session: Session) -> None:
        self._session = session

    def attempts(self, executions: Collection[str]) -> dict[tuple[str, int], AttemptOfLog]:
        """Known attempts, by execution and number."""
        found: dict[tuple[str, int], AttemptOfLog] = {}
        ordered = sorted(executions)
        for start in range(0, len(ordered), _AT_ONCE):
            query = (
                select(Attempt.execution, Attempt.number, Attempt.state, Application.deleted_at)
                .join(Execution, Execution.id == Attempt.execution)
                .join(Application, Application.id == Execution.application)
                .where(Attempt.execution.in_(ordered[start : start + _AT_ONCE]))
            )
            for row in self._session.execute(query):
                found[row.execution, row.number] = AttemptOfLog(row.state != "running", row.deleted_at is not None)
        return found

    def kept(self, execution: str, attempt: int) -> StoreFile | None:
        """The stored log; its ``position`` is the number of bytes before it."""
        files = StoreFiles(self._session).of("log", owner_of(execution, attempt))
        return files[-1] if files else None

    def keep(self, execution: str, attempt: int, path: str, size: int, kept_for: timedelta) -> None:
        """Make the file at ``path`` the attempt's stored log, in place of the previous one.

        Raises ``NotFound`` if the application was deleted, ``Conflict`` if the file has expired.
        """
        owner = self._session.get_one(Execution, execution).application
        row = self._session.get_one(Application, owner, with_for_update={"read": True})
        if row.deleted_at is not None:
            raise NotFound(f"Application {row.name!r} was deleted.")
        files = StoreFiles(self._session)
        for earlier in files.of("log", owner_of(execution, attempt)):
            files.give_up(earlier.path)
        files.name(path, size, database_now(self._session) + kept_for)

    def process(self, execution: str, attempt: int) -> str | None:
        """The launcher's reference to the driver's process."""
        row = self._session.get(Attempt, (execution, attempt))
        return None if row is None else row.process
