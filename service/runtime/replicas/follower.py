"""Following one application: its queryable state tables, brought to each committed snapshot."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError
from epochal.service.domain.snapshots import ApplicationHead
from epochal.service.runtime.replicas.applying import Interrupted, catch_up
from epochal.service.runtime.replicas.generations import Generations
from epochal.service.runtime.replicas.index import Failed, Left, Position, QueryableTable, ReplicaIndex, Tables
from epochal.service.runtime.replicas.point_format import PointFormat
from epochal.service.runtime.replicas.replica import Replica
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.merge_policy import bytes_of
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

    @cached_property
    def points(self) -> PointFormat:
        return PointFormat(self.format)


@dataclass
class FollowedApplication:
    """State of an application as seen by look-ups. May be read from any thread.

    ``tables`` is replaced as a whole when it changes.
    """

    branch: str
    at: EpochKey | None = None
    """The committed epoch that every replica has reached."""
    tables: dict[str, FollowedTable] = field(default_factory=dict)
    others: tuple[StateTable, ...] = ()
    """State tables that are not queryable."""
    unreplicated: tuple[StateTable, ...] = ()
    """Queryable tables that are too large for a replica: look-ups read files."""
    problem: EpochalError | None = None
    """Error that keeps the replicas from the latest committed epoch; ``None`` if they only lag."""


class Follower:
    """Follower of one application. Called from one thread."""

    def __init__(
        self,
        store: SnapshotStore,
        directory: Path,
        branch: str,
        left: Left | None = None,
        most_bytes: int | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``left``: the entry of an earlier process for the same directory.

        Its published state is visible immediately. ``most_bytes``: size of the files of a table above which it has no
        replica. ``stopping``: true when the process ends, which interrupts the building of a replica.
        """
        self._most_bytes = most_bytes
        self._stopping = stopping
        self._store = store
        self._directory = directory / branch
        self._tables: dict[str, Generations] = {}
        self._large: set[str] = set()
        self.seen = FollowedApplication(branch)
        self.published = False
        """``True`` if ``seen`` has been published to other processes."""
        if left is not None and left.tables.branch == branch:
            self._resume(left)

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
        except Interrupted:
            return False
        except EpochalError as error:
            if self.seen.problem is not None and self.seen.problem.message == error.message:
                return False
            log.error("replicas of %s cannot be advanced to %s: %s", head.application, committed.key, error)
            self.seen.problem, self.published = error, False
            return True
        names = {table.id for table in declared if table.queryable and table.id in self._tables}
        self.seen.tables = {id: followed for id, followed in self.seen.tables.items() if id in names}
        self._tables = {id: generations for id, generations in self._tables.items() if id in names}
        self.seen.others = tuple(table for table in declared if not table.queryable)
        self.seen.unreplicated = tuple(table for table in declared if table.queryable and table.id not in names)
        self.seen.at, self.seen.problem, self.published = committed.key, None, False
        return True

    def publish(self, index: ReplicaIndex, application: str) -> None:
        """Publish ``seen`` to other processes and delete replaced generations. Raises ``lmdb.Error``."""
        seen = self.seen
        queryable = tuple(
            QueryableTable(table=each.table, generation=each.replica.directory.name) for each in seen.tables.values()
        )
        problem = None if seen.problem is None else Failed.of(seen.problem)
        index.publish(
            application,
            Position(at=seen.at, problem=problem),
            Tables(branch=seen.branch, queryable=queryable, others=seen.others, unreplicated=seen.unreplicated),
        )
        self.published = True
        for generations in self._tables.values():
            generations.clear()
        if seen.problem is None:
            self._clear()

    def close(self) -> None:
        for generations in self._tables.values():
            generations.close()

    def _clear(self) -> None:
        """Delete the folders of tables that no longer exist or are no longer queryable."""
        for folder in self._directory.iterdir() if self._directory.is_dir() else ():
            if folder.name not in self._tables:
                shutil.rmtree(folder, ignore_errors=True)

    def _bring(self, table: StateTable, committed: ManifestReference) -> None:
        generations = self._tables.get(table.id)
        if generations is None:
            if table.id in self._large or self._is_large(table, committed):
                return
            generations = self._tables[table.id] = Generations(self._directory / table.id)
        replica = catch_up(generations, self._store, committed, table, self._stopping)
        seen = self.seen.tables.get(table.id)
        if seen is None or seen.table != table or seen.replica is not replica:
            self.seen.tables = self.seen.tables | {table.id: FollowedTable(table, replica)}

    def _is_large(self, table: StateTable, committed: ManifestReference) -> bool:
        """True if the table has no replica. Determined once; a table that grows keeps its replica until a restart."""
        if self._most_bytes is None:
            return False
        size = bytes_of([read_chains(self._store, committed, [table.id])[table.id]])
        if size <= self._most_bytes:
            return False
        self._large.add(table.id)
        log.info(
            "state %s of %s has no replica: its files have %d bytes, more than replica_bytes (%d); look-ups read them",
            table.id,
            self.seen.branch,
            size,
            self._most_bytes,
        )
        return True

    def _resume(self, left: Left) -> None:
        position = left.position
        for each in left.tables.queryable:
            generations = Generations(self._directory / each.table.id, each.generation)
            self._tables[each.table.id] = generations
            if position is None:
                continue  # becomes visible at the committed epoch
            if generations.current is None:
                self.seen.tables = {}
                return
            self.seen.tables[each.table.id] = FollowedTable(each.table, generations.current)
        if position is not None:
            self.seen.others, self.seen.at = left.tables.others, position.at
            self.seen.unreplicated = left.tables.unreplicated
            self.seen.problem = None if position.problem is None else position.problem.error()
            self.published = True
