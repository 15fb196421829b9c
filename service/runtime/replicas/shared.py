"""Read-only access to replicas that another process of this machine maintains."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import lmdb

from epochal.background.service import BackgroundService
from epochal.errors import EnvironmentProblem
from epochal.service.runtime.replicas.follower import FollowedApplication, FollowedTable
from epochal.service.runtime.replicas.index import IndexSnapshot, Position, ReplicaIndex, Tables
from epochal.service.runtime.replicas.replica import Replica
from epochal.service.runtime.replicas.replicas import INDEX, allow_open_files, shorten_pauses
from epochal.service.runtime.replicas.serving import ServedReplicas
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

log = logging.getLogger("epochal.replicas")

LOOK_SECONDS = 0.01
"""Interval between checks of the index on behalf of waiting look-ups. Other look-ups check the index on each call."""
_TRIES = 100


@dataclass(frozen=True, slots=True)
class _Known:
    """An application's rows in the index as of transaction ``number``, and the objects built from them."""

    number: int
    position: bytes
    tables: bytes
    seen: FollowedApplication


class _Gone(Exception):
    """A generation listed in the index is missing."""


class SharedReplicas(ServedReplicas):
    """A component that reads shared replicas.

    Each call checks the index for changes, which takes less than a microsecond.
    """

    def __init__(self, folder: Path, store: SnapshotStore) -> None:
        """``folder``: the folder claimed by the process that maintains the replicas."""
        super().__init__(store)
        self._folder = folder
        self._known: dict[str, _Known] = {}
        self._open: WeakValueDictionary[Path, Replica] = WeakValueDictionary()
        """Open replicas. LMDB cannot open an environment twice in one process, and a look-up may still read a replica
        that
        is no longer in ``_known``."""
        self._lock = threading.Lock()
        self._number = 0
        self._service = BackgroundService("replicas", self._look, LOOK_SECONDS, delay=LOOK_SECONDS)

    def open(self) -> None:
        shorten_pauses()
        allow_open_files()
        try:
            self._index = ReplicaIndex.open_to_read(self._folder / INDEX)
        except lmdb.Error as error:
            raise EnvironmentProblem(f"The replicas in {self._folder} cannot be read: {error}.") from error
        self._service.start()

    def close(self) -> None:
        self._closing = True
        self._service.stop(timeout=30)
        self.moved.ring()
        self._known.clear()
        for replica in list(self._open.values()):
            replica.close()
        self._index.close()

    def check_followed(self) -> None:
        if not self._index.round_noted():
            raise EnvironmentProblem("The replicas of this node are being brought to the latest epochs; try again.")

    def is_current(self) -> bool:
        """Return ``False`` if the index file was replaced since it was opened. The reader must then reopen it."""
        return self._index.is_current()

    def table(self, application: str, table: str) -> FollowedTable | None:
        known = self._known.get(application)
        seen = known.seen if known is not None and known.number >= self._index.number() else None
        seen = seen or self.application(application)
        if seen is None or (self._answered and self._is_behind(application, seen)):
            return None
        return seen.tables.get(table)

    def application(self, application: str) -> FollowedApplication | None:
        for _ in range(_TRIES):
            known = self._known.get(application)
            if known is not None and known.number >= self._index.number():
                return known.seen
            with self._index.reading() as snapshot:
                try:
                    return self._refreshed(application, snapshot)
                except _Gone as error:
                    reason = error  # replaced after this read of the index: retry
        raise EnvironmentProblem(f"The replicas of {application!r} cannot be read: {reason}. They are built again.")

    def _refreshed(self, application: str, snapshot: IndexSnapshot) -> FollowedApplication | None:
        with self._lock:
            known = self._known.get(application)
            if known is not None and known.number >= snapshot.number:
                return known.seen
            position, tables = snapshot.rows(application)
            if position is None or tables is None:
                self._known.pop(application, None)
                return None
            if known is None or known.position != position or known.tables != tables:
                seen = self._seen(position, tables, known)
            else:
                seen = known.seen
            self._known[application] = _Known(snapshot.number, position, tables, seen)
            return seen

    def _seen(self, position: bytes, tables: bytes, known: _Known | None) -> FollowedApplication:
        read = Position.model_validate_json(position)
        problem = None if read.problem is None else read.problem.error()
        if known is not None and known.tables == tables:
            followed, others, branch = known.seen.tables, known.seen.others, known.seen.branch
            unreplicated = known.seen.unreplicated
        else:
            what = Tables.model_validate_json(tables)
            branch, others, unreplicated = what.branch, what.others, what.unreplicated
            before = {} if known is None else known.seen.tables
            followed = {
                each.table.id: self._followed(
                    each.table, self._folder / branch / each.table.id / each.generation, before
                )
                for each in what.queryable
            }
        return FollowedApplication(branch, read.at, followed, others, unreplicated, problem)

    def _followed(self, table: StateTable, folder: Path, before: Mapping[str, FollowedTable]) -> FollowedTable:
        known = before.get(table.id)
        if known is not None and known.table == table and known.replica.directory == folder:
            return known
        replica = self._open.get(folder)
        if replica is None:
            try:
                replica = self._open[folder] = Replica.open_to_read(folder)
            except lmdb.Error as error:
                raise _Gone(str(error)) from error
        return FollowedTable(table, replica)

    def _look(self) -> None:
        if (now := self._index.number()) != self._number:
            self._number = now
            self.moved.ring()
