"""The sink that Delta and Iceberg tables share.

Tasks write Parquet files into the table's own folder, below ``epochal/{branch}/{epoch}/{attempt}``. No version of the table names
them, so that no reader sees them. The commit adds them to the table (:mod:`epochal.backends.tables.commit_protocol`).

=====  ======================================================================================
step   what
=====  ======================================================================================
T1     nothing
T2     rows go to temporary files of the task, one for each partition of the table
T3     the files are uploaded under unique names; handle: their entries in the table
E5     1 load the table, read the marker, choose the epochs to commit
       2 check that the table can still take the files, and that each is there with its size
       3 commit one version with the files and the marker, if the table has not changed since
E7     remove files of the epoch that no handle names
R1     create the table if it is missing; check it
=====  ======================================================================================

A file that a handle of a decided epoch names is never deleted, even if the epoch is given up: a version of the table
may name it. The table's own removal of orphaned files (``VACUUM``, ``remove_orphan_files``) removes it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import pyarrow as pa

from epochal.backends.tables.commit_protocol import Table, commit_decided
from epochal.backends.tables.folder import TableFolder, attempt_of, staged_folder
from epochal.contracts.backend import DecidedEpoch, SinkBackend
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.errors import SinkAhead


class TableSink(SinkBackend):
    """Sink backend of a table of versions. A subclass has the table, its folder, and the tasks' transactions."""

    needs_previous = True

    @property
    @abstractmethod
    def table(self) -> Table:
        """The table."""

    @abstractmethod
    def folder(self) -> TableFolder:
        """The folder of the table's files, in this process. Raises ``SinkError`` and ``SinkUnavailable``."""

    @abstractmethod
    def prepare(self) -> None:
        """R1: create the table if it is missing and may be created; check that this sink can write it."""

    @abstractmethod
    def staged(self, handles: Iterable[Handle]) -> list[str]:
        """Paths in the folder of the files that the handles name."""

    def check(self, schema: pa.Schema) -> None:
        self.check_types(schema)
        self.check_table(schema)

    @abstractmethod
    def check_table(self, schema: pa.Schema) -> None:
        """Check rows of this schema against the table, if it exists. Raises ``SinkError`` and ``SchemaError``."""

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        """Nothing: each branch has its own marker, and rows cannot be withdrawn."""

    def recover(self, epoch: EpochScope) -> None:
        self.prepare()
        shows = self.table.load(epoch.branch).marker
        if shows is not None and shows > epoch.epoch:
            raise SinkAhead.of(self.table.subject, shows, epoch.application, epoch.epoch)

    def shown(self, epoch: EpochScope) -> int | None:
        head = self.table.find(epoch.branch)
        return 0 if head is None else head.marker or 0

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Like :meth:`commit_decided` with the first epoch of a branch that has rows."""
        self.commit_decided([DecidedEpoch(epoch, tuple(handles))])

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        commit_decided(self.table, epochs)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        paths = self.staged(handles)
        if not paths:
            return
        head = self.table.find(epoch.branch)
        if head is None:
            return
        if head.marker is not None and head.marker >= epoch.epoch:
            return  # decided: a version of the table may name the files
        folder = self.folder()
        for path in paths:
            folder.delete(path)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept, folder, removed = set(self.staged(keep)), self.folder(), 0
        for path in folder.list(staged_folder(epoch.key)):
            attempt = attempt_of(path)
            if path not in kept and attempt is not None and attempt <= epoch.attempt:
                folder.delete(path)
                removed += 1
        return removed
