"""Wrong commits to tables of versions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.mutants.mutant import change, mutant

SIMULATION = "tests/simulation/test_table_commits.py"
CONTRACT = "tests/spark/contract/test_table_sinks.py"
DELTA_FILES = "tests/unit/backends/test_delta_files.py"
DELTA = f"tests/unit/backends/test_delta_sink.py tests/unit/backends/test_delta_values.py {CONTRACT} -k delta"
MANIFESTS = "tests/unit/backends/test_iceberg_manifests.py"
ICEBERG = f"tests/unit/backends/test_iceberg_sink.py {CONTRACT} -k iceberg"
ADDED = " ".join(f"tests/unit/backends/test_added_columns{part}.py" for part in ("", "_refused", "_epochs"))
BOTH = f"tests/unit/backends {CONTRACT}"


@mutant("tables: a missing marker counts as an empty table", SIMULATION)
def _absent_marker() -> None:
    from epochal.backends.tables import commit_protocol

    def lenient(decide: Any) -> Any:
        def wrong(marker: Any, epochs: Any) -> Any:
            return commit_protocol.Commit(tuple(epochs)) if marker is None else decide(marker, epochs)

        return wrong

    change(commit_protocol, "decide", lenient)


@mutant("tables: a marker between the epochs is accepted", SIMULATION)
def _unexplained_marker() -> None:
    from epochal.backends.tables import commit_protocol
    from epochal.backends.tables.commit_protocol import Commit, Stop

    def lenient(decide: Any) -> Any:
        def wrong(marker: Any, epochs: Any) -> Any:
            found = decide(marker, epochs)
            following = tuple(each for each in epochs if marker is None or each.epoch > marker)
            return Commit(following) if isinstance(found, Stop) else found

        return wrong

    change(commit_protocol, "decide", lenient)


@mutant("tables: a commit with an unknown outcome is repeated on the new head", SIMULATION)
def _repeated_commit() -> None:
    from epochal.backends.tables import commit_protocol
    from epochal.errors import OutcomeUnknown

    def repeating(commit_decided: Any) -> Any:
        def wrong(table: Any, epochs: Any) -> None:
            try:
                commit_decided(table, epochs)
            except OutcomeUnknown:
                table.load(epochs[-1].scope.branch).commit([each for each in epochs if each.rows])

        return wrong

    change(commit_protocol, "commit_decided", repeating)


@mutant("tables: a conflict counts as success", SIMULATION)
def _conflict_is_success() -> None:
    from epochal.backends.tables import commit_protocol

    def lenient(_: Any) -> Any:
        def wrong(table: Any, epochs: Any) -> None:
            head = table.load(epochs[-1].scope.branch)
            match commit_protocol.decide(head.marker, epochs):
                case commit_protocol.Commit(following):
                    try:
                        head.commit(following)
                    except commit_protocol.HeadMoved:
                        return

        return wrong

    change(commit_protocol, "commit_decided", lenient)


@mutant("tables: files of a decided epoch are deleted by an abort", BOTH)
def _swept_too_early() -> None:
    from epochal.backends.tables.sink import TableSink

    def eager(_: Any) -> Any:
        def wrong(self: Any, epoch: Any, handles: Any) -> None:
            self._remove_logs(epoch, handles)
            folder = self.folder()
            for path in self.staged(handles):
                folder.delete(path)

        return wrong

    change(TableSink, "abort", eager)


@mutant("tables: staged files are not looked for before the commit", BOTH)
def _not_looked_for() -> None:
    from epochal.backends.delta_lake import table as delta_table
    from epochal.backends.iceberg import table as iceberg_table

    for module in (delta_table, iceberg_table):
        change(module, "check_staged", lambda _: lambda *arguments: None)


@mutant("delta: the library repeats a commit on top of other versions", DELTA)
def _library_retries() -> None:
    from epochal.backends.delta_lake import table

    def patient(properties: Any) -> Any:
        def wrong(**options: Any) -> Any:
            return properties(**{**options, "max_commit_retries": 4})

        return wrong

    change(table, "CommitProperties", patient)


@mutant("delta: the marker is written without its rows", DELTA)
def _marker_alone() -> None:
    from epochal.backends.delta_lake.table import DeltaVersion

    def early(commit: Any) -> Any:
        def wrong(self: Any, entries: Any, epochs: Any) -> None:
            commit(self, [], epochs)
            self._table.update_incremental()
            commit(self, entries, epochs)

        return wrong

    change(DeltaVersion, "_commit", early)


@mutant("delta: an upper bound is rounded down", DELTA)
def _rounded_down() -> None:
    from epochal.backends.delta_lake import statistics

    change(statistics, "_moment", lambda moment: lambda value, upwards, zone: moment(value, False, zone))


@mutant("delta: a column with NaN has bounds", DELTA)
def _bounds_with_nan() -> None:
    from epochal.backends.delta_lake import transaction

    change(transaction, "_with_nan", lambda _: lambda rows: set())


@mutant("delta: a local file can be lost in a power failure after it is named", DELTA_FILES)
def _not_durable() -> None:
    from epochal.backends.tables import folder

    change(folder._LocalFile, "finish", lambda _: lambda self: self.file.close())


def _by_the_library(retries: int) -> None:
    """Commit with the library's own transaction."""
    from epochal.backends.iceberg.table import IcebergHead

    def own(_: Any) -> Any:
        def wrong(self: Any, files: Any, epochs: Any) -> None:
            from pyiceberg.exceptions import CommitFailedException
            from pyiceberg.table import Transaction

            from epochal.backends.tables.commit_protocol import HeadMoved
            from epochal.errors import OutcomeUnknown

            self._table.metadata.properties["commit.retry.num-retries"] = str(retries)
            transaction = Transaction(self._table)
            append = transaction.update_snapshot().fast_append()
            for file in files:
                append.append_data_file(file)
            append.commit()
            transaction.set_properties({self._property: str(epochs[-1].epoch)})
            try:
                transaction.commit_transaction()
            except CommitFailedException as error:
                raise HeadMoved from error
            except Exception as error:
                raise OutcomeUnknown(str(error)) from error

        return wrong

    change(IcebergHead, "_commit", own)


@mutant("iceberg: the library commits, with retries", ICEBERG)
def _library_with_retries() -> None:
    _by_the_library(4)


@mutant("iceberg: the library commits, without retries", ICEBERG)
def _library_without_retries() -> None:
    _by_the_library(0)


@mutant("iceberg: an epoch that is given up only sets the marker", ICEBERG)
def _property_only() -> None:
    from epochal.backends.iceberg.table import IcebergHead

    def alone(staged: Any) -> Any:
        def wrong(self: Any, files: Any, epochs: Any) -> Any:
            updates, requirements = staged(self, files, epochs)
            return (updates, requirements) if files else (updates[-1:], requirements[-1:])

        return wrong

    change(IcebergHead, "_staged", alone)


@mutant("iceberg: the entries of a merged manifest count as added by the merge", MANIFESTS)
def _merged_are_added() -> None:
    from pyiceberg.manifest import ManifestWriter

    change(ManifestWriter, "existing", lambda _: ManifestWriter.add)


@mutant("iceberg: manifests of deletes and of other partitions are merged too", MANIFESTS)
def _all_manifests_merged() -> None:
    from epochal.backends.iceberg import append

    def greedy(_: Any) -> Any:
        def wrong(manifests: Any, spec: int, limits: Any) -> Any:
            return list(manifests) if len(manifests) >= limits.count else []

        return wrong

    change(append, "small_manifests", greedy)


@mutant("iceberg: manifests are merged in each commit", MANIFESTS)
def _always_merged() -> None:
    from epochal.backends.iceberg import append

    def eager(small_manifests: Any) -> Any:
        def wrong(manifests: Any, spec: int, limits: Any) -> Any:
            data = [each for each in manifests if each.partition_spec_id == spec and each.content == 0]
            return data if len(data) >= limits.count else []

        return wrong

    change(append, "small_manifests", eager)


@mutant("tables: a sink that collects commits each epoch", "tests/unit/backends/test_collected_hour.py")
def _each_epoch_is_committed() -> None:
    from epochal.engine.commits import CommitQueue

    change(CommitQueue, "_is_due", lambda _: lambda self, backend, sink, epochs: True)


@mutant("tables: columns are added at the first commit of rows, not before the first epoch", ADDED)
def _added_after_the_data() -> None:
    from epochal.backends.delta_lake import sink as delta_sink
    from epochal.backends.iceberg import sink as iceberg_sink

    for module in (delta_sink, iceberg_sink):
        change(module, "add_missing_columns", lambda _: lambda subject, missing: missing())


@mutant("tables: a conflict while columns are added counts as success", ADDED)
def _columns_conflict_is_success() -> None:
    from epochal.backends.tables import added_columns

    def lenient(_: Any) -> Any:
        def wrong(subject: str, missing: Any) -> None:
            addition = missing()
            if addition is not None:
                added_columns.READ.hit()
                try:
                    addition.commit()
                except added_columns.HeadMoved:
                    return
                added_columns.ADDED.hit()

        return wrong

    for module in ("delta_lake", "iceberg"):
        change(import_module(f"epochal.backends.{module}.sink"), "add_missing_columns", lenient)


@mutant("tables: an error while columns are added counts as a refusal", ADDED)
def _columns_error_is_final() -> None:
    from epochal.backends.tables import added_columns
    from epochal.errors import SinkError

    change(added_columns, "OutcomeUnknown", lambda _: SinkError)


@mutant("tables: columns are added although another column has another type", ADDED)
def _type_is_the_same() -> None:
    from epochal.backends.delta_lake.sink import DeltaSink
    from epochal.backends.iceberg.sink import IcebergSink

    def unchecked(addition: Any) -> Any:
        def wrong(self: Any, table: Any, rows: Any) -> Any:
            check, self._check_existing = self._check_existing, lambda *arguments: None
            try:
                return addition(self, table, rows)
            finally:
                self._check_existing = check

        return wrong

    for sink in (DeltaSink, IcebergSink):
        change(sink, "_addition", unchecked)


@mutant("delta: the library adds columns again on top of other versions", ADDED)
def _columns_with_retries() -> None:
    from epochal.backends.delta_lake import added_columns

    def patient(properties: Any) -> Any:
        def wrong(**options: Any) -> Any:
            return properties(**{**options, "max_commit_retries": 4})

        return wrong

    change(added_columns, "CommitProperties", patient)


@mutant("iceberg: a late request gives a column the number of a dropped one", ADDED)
def _reused_number() -> None:
    from dataclasses import replace

    from pyiceberg.table.update import AssertLastAssignedFieldId

    from epochal.backends.iceberg import sink

    def lenient(staged_columns: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            staged = staged_columns(*arguments)
            if staged is None:
                return None
            kept = [each for each in staged.requirements if not isinstance(each, AssertLastAssignedFieldId)]
            return replace(staged, requirements=tuple(kept))

        return wrong

    change(sink, "staged_columns", lenient)


@mutant("tables: rows of an earlier version get the columns of the first batch", ADDED)
def _first_columns_for_all() -> None:
    from epochal.backends.tables import sink

    def one_group(_: Any) -> Any:
        def wrong(batches: Any, key: Any) -> Any:
            held = list(batches)
            return [(key(held[0]), [each.select(held[0].schema.names) for each in held])] if held else []

        return wrong

    change(sink, "groupby", one_group)


@mutant("iceberg: lists of structs are projected without their nulls", "tests/unit/backends/test_nested_values.py")
def _without_nulls() -> None:
    from epochal.backends.iceberg import projection

    change(projection, "_with_nulls_of", lambda _: lambda values, projected: projected)
