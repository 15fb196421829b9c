"""Following one application: its queryable state tables, brought to each committed snapshot."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError
from epochal.service.domain.ports import ApplicationHead
from epochal.service.runtime.replicas.applying import catch_up
from epochal.service.runtime.replicas.replica import UNREADABLE, Replica
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

log = logging.getLogger("epochal.replicas")


@dataclass(frozen=True)
class FollowedTable:
    """A queryable state table and its replica."""

    table: StateTable
    replica: Replica

    @cached_property
    def format(self) -> RowFormat:
        return RowFormat(self.table)


@dataclass
class FollowedApplication:
    """What look-ups see of an application. Replaced as a whole when the tables change; read from any thread."""

    branch: str
    at: EpochKey | None = None
    """The committed epoch that every replica has reached."""
    tables: dict[str, FollowedTable] = field(default_factory=dict)
    others: tuple[StateTable, ...] = ()
    """State tables that are not queryable."""
    problem: EpochalError | None = None
    """Why the replicas are not at the latest committed epoch, where that is not for want of time."""


class Follower:
    """Called from one thread."""

    def __init__(self, store: SnapshotStore, directory: Path, branch: str) -> None:
        self._store = store
        self._directory = directory / branch
        self._open: dict[str, Replica] = {}
        self._broken: list[Replica] = []
        """Replaced, but perhaps still being read from."""
        self.seen = FollowedApplication(branch)

    def follow(self, head: ApplicationHead) -> bool:
        """Bring all replicas to the committed head. True when something changed."""
        committed = head.committed
        if committed is None or self.seen.at == committed.key:
            return False
        try:
            declared = self._store.read_manifest(committed).tables
            for table in declared:
                if table.queryable:
                    self._bring(table, committed)
        except EpochalError as error:
            if self.seen.problem is None or self.seen.problem.message != error.message:
                log.error("replicas of %s cannot follow to %s: %s", head.application, committed.key, error)
            self.seen.problem = error
            return False
        names = {table.id for table in declared if table.queryable}
        self.seen.tables = {id: followed for id, followed in self.seen.tables.items() if id in names}
        self.seen.others = tuple(table for table in declared if not table.queryable)
        self.seen.at, self.seen.problem = committed.key, None
        return True

    def take_replicas(self) -> list[Replica]:
        """All replicas that are open, for whoever closes them."""
        taken, self._open, self._broken = [*self._open.values(), *self._broken], {}, []
        return taken

    def _bring(self, table: StateTable, committed: ManifestReference) -> None:
        replica = self._open.get(table.id)
        if replica is None:
            replica = self._open[table.id] = Replica.open(self._directory / table.id)
        try:
            catch_up(replica, self._store, committed, table)
        except UNREADABLE as error:
            log.warning("replica %s is broken (%s); building it anew", replica.directory, error)
            self._broken.append(replica)
            replica = self._open[table.id] = replica.replaced()
            catch_up(replica, self._store, committed, table)
        seen = self.seen.tables.get(table.id)
        if seen is None or seen.table != table or seen.replica is not replica:
            self.seen.tables = self.seen.tables | {table.id: FollowedTable(table, replica)}
