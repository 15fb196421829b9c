"""The sink that Delta and Iceberg tables share.

Tasks write Parquet files into the table's own folder, below ``epochal/{branch}/{epoch}/{attempt}``. No version of the
table names them, so that no reader sees them. The commit adds them to the table
(:mod:`epochal.backends.tables.commit_protocol`).

=====  ======================================================================================
step   what
=====  ======================================================================================
T1     nothing
T2     rows go to files of the task, one for each partition of the table: local ones in their place, others temporary
T3     the files are complete and durable under unique names; handle: their entries in the table
E5     1 load the table, read the marker, choose the epochs to commit
       2 check that the table can still take the files, and that each is there with its size
       3 commit one version with the files and the marker, if the table has not changed since
E7     remove files of the epoch that no handle names
R1     create the table if it is missing; add columns that it lacks, with ``add_columns``; check it
=====  ======================================================================================

A sink with ``commit_every`` collects epochs: tasks write their rows to a write-ahead log in the snapshot store, and the
driver writes the rows of several epochs to few files before their commit. Which epochs are committed together is not
recorded: after a crash the marker shows which are left.

A file that a handle of a decided epoch names is never deleted, even if the epoch is given up: a version of the table
may name it. The table's own removal of orphaned files (``VACUUM``, ``remove_orphan_files``) removes it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import pyarrow as pa

from epochal.backends.tables.commit_protocol import Table, commit_decided
from epochal.backends.tables.folder import TableFolder, attempt_of, staged_folder
from epochal.backends.tables.restore_points import restore_point
from epochal.backends.write_ahead_log import LogWriter, WriteAheadLog, has_log
from epochal.contracts.backend import Buffering, DecidedEpoch, SinkBackend, SinkPlace, SinkTransaction
from epochal.contracts.catalog import EpochRange, RestorePoint, Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import SinkAhead
from epochal.faults import declare

Conforming = Callable[[pa.RecordBatch], pa.RecordBatch]

MERGED: Final = declare("E5.table.merged", "the rows of the collected epochs are in files that no version names")


class TableSink(SinkBackend):
    """Sink backend of a table of versions. A subclass has the table, its folder, and the transactions that write files.

    ``buffering``: the limits within which it collects epochs; ``None``: each epoch is committed alone."""

    needs_previous = True

    def __init__(self, place: SinkPlace, buffering: Buffering | None) -> None:
        self._place = place
        self._buffering = buffering
        self._write_ahead_log = WriteAheadLog(place)
        self._merged: tuple[list[EpochScope], list[Handle]] | None = None
        """Epochs whose rows this process has merged, and their files."""

    @property
    def commits_logs(self) -> bool:
        """True if a commit applies the rows of logs to the table itself, instead of files."""
        return False

    @property
    def buffering(self) -> Buffering | None:
        return self._buffering

    @property
    @abstractmethod
    def table(self) -> Table:
        """The table."""

    @abstractmethod
    def folder(self) -> TableFolder:
        """The folder of the table's files, in this process. Raises ``SinkError`` and ``SinkUnavailable``."""

    @abstractmethod
    def prepare(self) -> None:
        """R1: create the table if it is missing and may be created; add columns that it lacks, if this is allowed;
        check that this sink can write it."""

    @abstractmethod
    def files(self, task: TaskScope) -> SinkTransaction:
        """A transaction of a task that writes files of the table."""

    @abstractmethod
    def conforming(self) -> Conforming:
        """A function that tasks apply to rows before they are logged: what the table would refuse after the decision is
        refused before it. Raises ``RowRejected``."""

    @abstractmethod
    def merged_files(self, task: TaskScope, schema: pa.Schema) -> SinkTransaction:
        """A transaction that writes the rows of several epochs, with these columns, to files in
        :func:`epochal.backends.tables.folder.merged_folder`. It ends with the epoch of ``task``."""

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

    def restore_point(self, left: Mapping[str, EpochRange]) -> RestorePoint | None:
        searched = 0
        for history in self.table.history():
            if (found := restore_point(history, left)) is not None:
                return found
            searched = len(history)
        if not searched:
            return RestorePoint(reason="the table does not exist, or has no rows", unknown=True)
        return RestorePoint(reason=f"the latest {searched} versions of the table do not show it", unknown=True)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Like :meth:`commit_decided` with the first epoch of a branch that has rows."""
        self.commit_decided([DecidedEpoch(epoch, tuple(handles))])

    def start(self, task: TaskScope) -> SinkTransaction:
        if self._buffering is None and not self.commits_logs:
            return self.files(task)
        return LogTransaction(self._write_ahead_log, task, self.conforming())

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        commit_decided(self.table, epochs, self._with_merged_files)
        self._merged = None
        for each in epochs:
            self._remove_logs(each.scope, each.handles)

    def _with_merged_files(self, epochs: Sequence[DecidedEpoch]) -> Sequence[DecidedEpoch]:
        """The epochs with files of the table instead of logs. Epochs of an earlier version without ``commit_every``
        have files already."""
        logged = [each for each in epochs if any(has_log(handle) for handle in each.handles)]
        if not logged or self.commits_logs:
            return epochs
        scopes = [each.scope for each in logged]
        if self._merged is None or self._merged[0] != scopes:
            self._merged = scopes, self._merge(logged)
            MERGED.hit(scopes[-1].epoch)
        merged = self._merged[1]
        kept = [[handle for handle in each.handles if not has_log(handle)] for each in epochs]
        kept[-1] += merged
        return [replace(each, handles=tuple(handles)) for each, handles in zip(epochs, kept, strict=True)]

    def _merge(self, epochs: Sequence[DecidedEpoch]) -> list[Handle]:
        """Files with the rows of the epochs. Rows of versions of the application with other columns have other files,
        which lack the columns."""
        task = TaskScope(epochs[-1].scope, self._place.sink, 0)
        handles = []
        for schema, batches in groupby(self._logged(epochs), lambda batch: batch.schema):
            transaction = self.merged_files(task, schema)
            for batch in batches:
                transaction.write(batch)
            handles.append(transaction.pre_commit())
        return handles

    def _logged(self, epochs: Sequence[DecidedEpoch]) -> Iterator[pa.RecordBatch]:
        for each in epochs:
            yield from self._write_ahead_log.read(each.scope, [handle for handle in each.handles if has_log(handle)])

    def _remove_logs(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        logged = [handle for handle in handles if has_log(handle)]
        if logged:
            self._write_ahead_log.remove(epoch, logged)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._remove_logs(epoch, handles)
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
        has_logs = self._buffering is not None or self.commits_logs
        removed = self._write_ahead_log.sweep(epoch, keep) if has_logs else 0
        kept, folder = set(self.staged(keep)), self.folder()
        for path in folder.list(staged_folder(epoch.key)):
            attempt = attempt_of(path)
            if path not in kept and attempt is not None and attempt <= epoch.attempt:
                folder.delete(path)
                removed += 1
        return removed


class LogTransaction(SinkTransaction):
    """One task attempt's log."""

    def __init__(self, log: WriteAheadLog, task: TaskScope, conforming: Conforming) -> None:
        self._log = log
        self._task = task
        self._conforming = conforming
        self._writer: LogWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        rows = self._conforming(batch)
        if self._writer is None:
            self._writer = self._log.open(self._task, rows.schema)
        self._writer.write(rows)

    def pre_commit(self) -> Handle:
        if self._writer is None:
            return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=0, bytes=0, payload={})
        return self._writer.finish()

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
