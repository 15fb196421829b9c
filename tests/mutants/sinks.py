"""Wrong ways to stage output and to commit it exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.mutants.mutant import change, mutant

FILES = "tests/spark/contract/test_files_sink.py"
DBMS = "tests/servers/contract/test_dbms_sink.py tests/servers/contract/test_dbms_fence.py"
KAFKA = "tests/servers/contract/test_kafka_sink.py"
HDFS = "tests/servers/contract/test_hdfs_sink.py"


@mutant("files: files are visible to readers before the commit", FILES)
def _written_in_place() -> None:
    from epochal.backends.files import FilesBackend

    change(FilesBackend, "_staging", lambda _: lambda self, branch: self._path / "epoch=staging")


@mutant("files: an epoch is published file by file", "tests/spark/test_backends_files.py")
def _published_file_by_file() -> None:
    from epochal.backends import files

    def file_by_file(_: Any) -> Any:
        def wrong(self: Any, epoch: Any, staged: Any, final: Any) -> None:
            final.mkdir()
            for file in staged:
                (self._staging(epoch.branch) / file.staged).rename(final / file.final)
                files.GATHERED_ONE.hit(epoch.epoch)

        return wrong

    change(files.FilesBackend, "_publish", file_by_file)


@mutant("files: attempts of one subtask share a file", FILES)
def _shared_file() -> None:
    import uuid

    uuid.uuid4 = lambda: uuid.UUID(int=7)  # type: ignore[assignment]


@mutant("log: the sweep deletes referenced segments", DBMS)
def _sweep_ignores_references() -> None:
    from epochal.backends.write_ahead_log import WriteAheadLog

    change(WriteAheadLog, "sweep", lambda sweep: lambda self, epoch, keep: sweep(self, epoch, ()))


@mutant("log: segments are removed before they are applied", KAFKA)
def _log_removed_early() -> None:
    from epochal.backends.kafka.backend import KafkaBackend

    def early(commit: Any) -> Any:
        def wrong(self: Any, epoch: Any, handles: Any) -> None:
            buffered = {handle.subtask: list(self._log.read(epoch, [handle])) for handle in handles}
            self._log.remove(epoch, handles)
            self._log.read = lambda _, mine: (batch for handle in mine for batch in buffered[handle.subtask])
            try:
                commit(self, epoch, handles)
            finally:
                del self._log.read

        return wrong

    change(KafkaBackend, "commit", early)


@mutant("kafka: the marker is not read", KAFKA)
def _marker_unread() -> None:
    from epochal.backends.kafka.committer import ShardCommitter

    def blind(_: Any) -> Any:
        def wrong(self: Any, work: Any) -> None:
            if self._producer is None:
                self._fence()
            self._apply(work, 0)

        return wrong

    change(ShardCommitter, "_commit", blind)


@mutant(
    "kafka: the marker is written outside the transaction of the records", "tests/spark/contract/test_sinks_crash.py"
)
def _marker_outside() -> None:
    from epochal.backends.kafka import committer

    def apart(end: Any) -> Any:
        def wrong(self: Any, work: Any, rows: int, complete: bool) -> None:
            producer = self._current()
            producer.patiently(producer.client.commit_transaction, self._place.timeout_seconds)
            committer.COMMITTED.hit(work.epoch)
            producer.client.begin_transaction()
            end(self, work, rows, complete)

        return wrong

    change(committer.ShardCommitter, "_end_transaction", apart)


@mutant("kafka: a marker of any epoch counts as the epoch's own", KAFKA)
def _marker_gap() -> None:
    from epochal.backends.kafka.committer import ShardCommitter

    def careless(_: Any) -> Any:
        def wrong(self: Any, work: Any) -> None:
            if self._producer is None:
                self._fence()
            if not self._marker_known:
                self._read(wait=True)
            if self._marker is None:
                self._apply(work, 0)

        return wrong

    change(ShardCommitter, "_commit", careless)


@mutant("dbms: rows are applied outside the fence's transaction", DBMS)
def _outside_fence() -> None:
    from epochal.backends.dbms import shard

    def apart(_: Any) -> Any:
        def wrong(self: Any, part: Any) -> None:
            with self._access.transaction("apply") as connection:
                shard.apply(connection, self._access.writing, self._chunks(part))
                connection.commit()
            with self._access.transaction("move the fence") as connection:
                self._fence.advance(connection, part.epoch, part.shard)
                connection.commit()

        return wrong

    change(shard.ShardWriter, "_commit", apart)


@mutant("dbms: the fence ignores the attempt", DBMS)
def _attempt_ignored() -> None:
    from epochal.backends.dbms.fence import Fence

    def blind(advance: Any) -> Any:
        def wrong(self: Any, connection: Any, epoch: Any, shard: int = 0) -> Any:
            row = self._row(connection, epoch, shard)
            return advance(self, connection, epoch if row is None else replace(epoch, attempt=row.attempt), shard)

        return wrong

    change(Fence, "advance", blind)


@mutant("dbms: the fence is set without a comparison", DBMS)
def _fence_only_set() -> None:
    import sqlalchemy as sa

    from epochal.backends.dbms.fence import Fence

    def set_only(_: Any) -> Any:
        def wrong(self: Any, connection: Any, epoch: Any, shard: int = 0) -> bool:
            return bool(self._update(connection, epoch, shard, sa.true(), {"epoch": epoch.epoch}))

        return wrong

    change(Fence, "advance", set_only)


SHARDS = "tests/unit/test_dbms_sharding.py"


@mutant("dbms: rows of a key are in any shard", SHARDS)
def _rows_in_any_shard() -> None:
    from epochal.backends.dbms.sharding import Sharding

    def wrong(split: Any) -> Any:
        return lambda self, rows: split(Sharding(self.shards), rows)

    change(Sharding, "split", wrong)


@mutant("dbms: a commit uses the sink's number of shards instead of the log's", SHARDS)
def _number_of_shards_by_setting() -> None:
    from epochal.backends.dbms import shard

    change(shard, "shards_of", lambda _: lambda handles: 2)


@mutant("dbms: the fences of shards without rows stay behind", SHARDS)
def _fences_left_behind() -> None:
    from epochal.backends.dbms.shard import ShardPart

    ShardPart.fences = property(lambda self: [self.shard])  # type: ignore[assignment, method-assign]


@mutant("dbms: a new shard's fence begins at the latest decided epoch", SHARDS)
def _new_fence_ahead() -> None:
    from epochal.backends.dbms import fence

    change(fence, "_is_without", lambda _: lambda key, place: True)


@mutant("dbms: a shard that has committed an epoch commits it again", SHARDS)
def _shard_commits_twice() -> None:
    from epochal.backends.dbms.fence import Fence

    def wrong(advance: Any) -> Any:
        return lambda self, connection, epoch, shard=0: advance(self, connection, epoch, shard) or shard > 0

    change(Fence, "advance", wrong)


@mutant("dbms: one fence stands for all shards", SHARDS)
def _one_fence() -> None:
    from epochal.backends.dbms.fence import Fence

    def wrong(advance: Any) -> Any:
        return lambda self, connection, epoch, shard=0: advance(self, connection, epoch, 0)

    change(Fence, "advance", wrong)


@mutant("hdfs: the length of an upload is not verified", "tests/servers/contract/test_hdfs_faults.py")
def _upload_trusted() -> None:
    from epochal.backends.hdfs.sink import HdfsBackend

    change(HdfsBackend, "_is_same", lambda _: lambda self, found, file: not found.is_folder)


@mutant("hdfs: a rename whose answer was lost is not verified", HDFS)
def _hdfs_rename_unchecked() -> None:
    from epochal.backends.hdfs.sink import HdfsBackend

    def blind(_: Any) -> Any:
        def wrong(self: Any, epoch: Any, handles: Any) -> None:
            import posixpath

            from epochal.backends.hdfs.sink import hdfs_files, shown_folder

            files = hdfs_files(handles)
            if files:
                self._publish(epoch, files, posixpath.join(self._path, shown_folder(epoch.epoch)))

        return wrong

    change(HdfsBackend, "commit", blind)


VALUES = "tests/spark/contract/test_sink_values.py"
REFUSED = "tests/servers/contract/test_dbms_refused_values.py"


@mutant("files: CSV doubles quotation marks, which Spark cannot read back", VALUES)
def _csv_of_another_dialect() -> None:
    import pyarrow.compute as pc

    from epochal.backends import csv_lines

    change(csv_lines, "_escaped", lambda _: lambda batch, name, column: pc.replace_substring(column, '"', '""'))


@mutant("dbms: decimals are stored in SQLite as floating-point numbers", VALUES)
def _decimals_as_floats() -> None:
    from epochal.backends.dbms.column_types import SqliteDecimal

    change(SqliteDecimal, "bind_processor", lambda _: lambda self, dialect: lambda value: value and float(value))


@mutant("dbms: jsonb values are not checked for zero characters", REFUSED)
def _zero_in_jsonb() -> None:
    from epochal.backends.dbms import values

    change(values, "_jsonb_problems", lambda _: lambda texts: iter(()))


@mutant("dbms: text values are not checked against the column's type", REFUSED)
def _text_unchecked() -> None:
    from epochal.backends.dbms import values

    change(values, "_text_problems", lambda _: lambda values, type, dialect: iter(()))


@mutant("commits: a refused row stops every sink", "tests/unit/test_engine_commits.py")
def _refused_row_stops_all() -> None:
    from epochal.engine.commits import CommitQueue

    change(CommitQueue, "_is_stopped", lambda _: lambda self, epoch: False)


@mutant("dbms: an older row of a later epoch replaces a newer one", DBMS)
def _older_rows_replace_newer_ones() -> None:
    from epochal.backends.dbms.writing import Writing

    Writing.guard = property(lambda self: None)  # type: ignore[assignment, method-assign]


@mutant("dbms: a stale delete removes a newer row", DBMS)
def _stale_deletes() -> None:
    from epochal.backends.dbms import portable

    def wrong(_: Any) -> Any:
        def by_keys(self: Any, connection: Any, rows: Any) -> None:
            for row in rows:
                same = [self._table.c[key] == row[key] for key in self._writing.table_keys]
                connection.execute(self._table.delete().where(*same))

        return by_keys

    change(portable.PortableTable, "_delete", wrong)


DEAD_LETTERS = "tests/unit/test_dead_letters.py"


@mutant("dead letters: a batch with a rejected row is rejected as a whole", DEAD_LETTERS)
def _whole_batch_rejected() -> None:
    from epochal.errors import RowRejected
    from epochal.tasks.dead_letters import SortedOut

    def whole(_: Any) -> Any:
        def wrong(self: Any, batch: Any) -> None:
            try:
                self._accepting.write(batch)
            except RowRejected as rejected:
                for row in range(batch.num_rows):
                    self._reject(batch.slice(row, 1), rejected.message)

        return wrong

    change(SortedOut, "write", whole)


@mutant("dead letters: rejected rows are written nowhere", DEAD_LETTERS)
def _rejected_rows_dropped() -> None:
    from epochal.tasks.dead_letters import SortedOut

    change(SortedOut, "_letters", lambda letters: lambda self: letters(self).slice(0, 0))


@mutant("dead letters: any error of a sink is one of its rows", DEAD_LETTERS)
def _any_error_is_of_a_row() -> None:
    from epochal.errors import SinkError
    from epochal.tasks import dead_letters

    change(dead_letters, "RowRejected", lambda _: SinkError)


@mutant("dead letters: the limit counts each subtask on its own", "tests/unit/test_engine_epoch.py")
def _limit_of_each_subtask() -> None:
    from epochal.engine import job

    change(job, "_check_dead_letters", lambda _: lambda answers, sink, letters, written: None)


@mutant(
    "dead letters: rows of a batch are taken before the batch is rejected", "tests/spark/contract/test_table_sinks.py"
)
def _rejected_after_taking() -> None:
    from epochal.backends.delta_lake.transaction import DeltaTransaction

    def early(write: Any) -> Any:
        def wrong(self: Any, batch: Any) -> None:
            for row in range(batch.num_rows):
                write(self, batch.slice(row, 1))

        return wrong

    change(DeltaTransaction, "write", early)
