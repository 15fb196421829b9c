"""Files of the store that belong to no branch. The catalog records them before they are written, until they are
deleted.

A file is *intended* (it may be incomplete), then *named* (its owner uses it), and finally perhaps *given up* (it
expires and is deleted). After a crash at any point the catalog lists the file, and it expires.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from epochal.errors import Conflict
from epochal.service.catalog.models import StoreFile
from epochal.service.catalog.types import database_now

Kind = Literal["artifact", "upload", "export", "import", "log"]

INTENDED_FOR = timedelta(days=2)
"""Maximum time between the intention to write a file and naming it."""
BUNDLES: tuple[Kind, ...] = ("upload", "export", "import")
_AT_ONCE = 400


class StoreFiles:
    def __init__(self, session: Session) -> None:
        self._session = session

    def intend(self, kind: Kind, owner: str, path: str, position: int = 0) -> None:
        expires_at = database_now(self._session) + INTENDED_FOR
        self._session.add(
            StoreFile(path=path, kind=kind, owner=owner, position=position, bytes=None, expires_at=expires_at)
        )
        self._session.flush()

    def name(self, path: str, size: int, expires_at: datetime | None = None) -> None:
        """Mark the file as complete and used by its owner. Raises ``Conflict`` if it has expired."""
        row = self._session.get(StoreFile, path, with_for_update=True, populate_existing=True)
        if row is None or (row.expires_at is not None and row.expires_at <= database_now(self._session)):
            raise Conflict(f"{path} expired before it was complete; retry.")
        row.bytes, row.expires_at = size, expires_at

    def of(self, kind: Kind, owner: str) -> Sequence[StoreFile]:
        """Named files that have not expired, by position."""
        query = (
            select(StoreFile)
            .where(StoreFile.kind == kind, StoreFile.owner == owner, StoreFile.bytes.is_not(None))
            .where(StoreFile.expires_at.is_(None) | (StoreFile.expires_at > database_now(self._session)))
        )
        return self._session.scalars(query.order_by(StoreFile.position, StoreFile.path)).all()

    def all_of(self, kind: Kind, owner: str) -> Sequence[str]:
        """Paths of all recorded files of an owner, in any state."""
        query = select(StoreFile.path).where(StoreFile.kind == kind, StoreFile.owner == owner)
        return self._session.scalars(query).all()

    def named(self, kind: Kind) -> Sequence[str]:
        """Paths of the named files of a kind that have not expired."""
        query = (
            select(StoreFile.path)
            .where(StoreFile.kind == kind, StoreFile.bytes.is_not(None))
            .where(StoreFile.expires_at.is_(None) | (StoreFile.expires_at > database_now(self._session)))
        )
        return self._session.scalars(query.order_by(StoreFile.path)).all()

    def give_up(self, path: str) -> None:
        """Let the file expire now."""
        self._give_up(StoreFile.path == path)

    def give_up_all(self, kind: Kind, owner: str) -> None:
        """Let all files of an owner expire, named or intended."""
        self._give_up(StoreFile.kind == kind, StoreFile.owner == owner)

    def give_up_bundles(self) -> None:
        """Let all bundles expire, of imports and exports: backups do not contain them."""
        self._give_up(StoreFile.kind.in_(BUNDLES))

    def give_up_below(self, folder: str) -> None:
        self._give_up(StoreFile.path.startswith(f"{folder}/", autoescape=True))

    def expired(self, most: int) -> Sequence[str]:
        """Paths of expired files, oldest first."""
        moment = database_now(self._session)
        query = select(StoreFile.path).where(StoreFile.expires_at <= moment).order_by(StoreFile.expires_at)
        return self._session.scalars(query.limit(most)).all()

    def forget(self, paths: Collection[str]) -> None:
        """Remove the rows of deleted files."""
        moment = database_now(self._session)
        ordered = sorted(paths)
        for start in range(0, len(ordered), _AT_ONCE):
            some = ordered[start : start + _AT_ONCE]
            query = delete(StoreFile).where(StoreFile.path.in_(some), StoreFile.expires_at <= moment)
            self._session.execute(query)

    def paths(self) -> set[str]:
        """Paths of all recorded files, in any state."""
        return set(self._session.scalars(select(StoreFile.path)).all())

    def _give_up(self, *which: object) -> None:
        moment = database_now(self._session)
        query = update(StoreFile).where(*which).values(expires_at=moment)  # type: ignore[arg-type]
        self._session.execute(query.execution_options(synchronize_session="fetch"))
