"""``delta.sink``: appends each epoch to a Delta table in one version. See :mod:`epochal.backends.tables.sink`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from epochal.backends.delta_lake.added_columns import column_addition, missing_columns
from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.compaction import compact
from epochal.backends.delta_lake.schema import (
    check_features,
    check_partitions,
    check_replaceable,
    check_rows,
    columns_of,
    physical_schema,
    required_columns,
    retention_warning,
)
from epochal.backends.delta_lake.table import MARKED, DeltaLog
from epochal.backends.delta_lake.transaction import FILE_BYTES, DeltaTransaction, RowShape, entries_of
from epochal.backends.delta_lake.upsert import check_keys
from epochal.backends.tables.added_columns import ColumnAddition, add_missing_columns, hint, note
from epochal.backends.tables.folder import WritableFolder, attempt_folder, merged_folder
from epochal.backends.tables.sink import Conforming, TableSink
from epochal.contracts.backend import Buffering, SinkPlace, TableCompaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SchemaError, SinkError


class DeltaSink(TableSink):
    """Sink backend of ``delta.sink``. ``partition_by``: columns by which a missing table is created; an existing one
    has its own. ``file_bytes``: size at which another file begins, and below which
    files are compacted. ``keys``: columns by which rows replace others."""

    def __init__(
        self,
        sink: SinkPlace,
        address: DeltaAddress,
        partition_by: Sequence[str] = (),
        buffering: Buffering | None = None,
        file_bytes: int = FILE_BYTES,
        keys: Sequence[str] = (),
        add_columns: bool = False,
    ) -> None:
        super().__init__(sink, buffering)
        self._add_columns = add_columns
        self._keys = tuple(keys)
        self._file_bytes = file_bytes
        self._address = address
        self._partition_by = tuple(partition_by)
        self._log = DeltaLog(sink, address, keys)
        self._schema: pa.Schema | None = None
        self._shape: RowShape | None = None

    @property
    def kind(self) -> str:
        return "delta"

    @property
    def target(self) -> str:
        return self._address.target

    @property
    def table(self) -> DeltaLog:
        return self._log

    def folder(self) -> WritableFolder:
        return self._log.folder()

    @property
    def commits_logs(self) -> bool:
        return bool(self._keys)

    def check_types(self, schema: pa.Schema) -> None:
        rows = physical_schema(self._log.subject, schema)
        check_keys(self._log.subject, self._keys, rows.names)
        check_partitions(self._log.subject, columns_of(rows), self._partition_by)
        if set(rows.names) <= set(self._partition_by):
            raise SchemaError(
                f"{self._log.subject} has no column besides those by which it is partitioned. Add one to the rows."
            )
        self._schema = rows

    def check_table(self, schema: pa.Schema) -> None:
        self._log.check_conditional()
        table, rows = self._log.opened(), physical_schema(self._log.subject, schema)
        if table is not None and self._addition(table, rows) is None:
            self._check_existing(table, rows)

    def warnings(self) -> list[str]:
        table, schema = self._log.opened(), self._schema
        if table is None:
            return []
        addition = None if schema is None else self._addition(table, schema)
        added = None if addition is None else note(self._log.subject, addition)
        return [each for each in (retention_warning(self._log.subject, table), added) if each is not None]

    def prepare(self) -> None:
        self._log.check_conditional()
        schema = self._schema
        if schema is None:
            return  # this process commits what others have staged
        table = self._log.opened()
        if table is None:
            self._log.create(schema, self._partition_by)
            table = self._existing()
        if self._add_columns:
            add_missing_columns(self._log.subject, lambda: self._addition(self._existing(), schema))
            table = self._existing()
        self._check_existing(table, schema)
        self._shape = self._shape_of(table, schema)

    def files(self, task: TaskScope) -> DeltaTransaction:
        if self._shape is None:
            raise SinkError(f"{self._log.subject} was not prepared before its first epoch.")
        folder, place = self._log.folder(), attempt_folder(task.epoch)
        return DeltaTransaction(folder, place, self._shape, task, self._file_bytes)

    def conforming(self) -> Conforming:
        if self._shape is None:
            raise SinkError(f"{self._log.subject} was not prepared before its first epoch.")
        return self._shape.conforming

    def merged_files(self, task: TaskScope, schema: pa.Schema) -> DeltaTransaction:
        table, rows = self._existing(), physical_schema(self._log.subject, schema)
        self._check_existing(table, rows)
        folder, place = self._log.folder(), merged_folder(task.epoch)
        return DeltaTransaction(folder, place, self._shape_of(table, rows), task, self._file_bytes)

    def optimize(self, note: Callable[[str], None]) -> TableCompaction:
        return compact(self._log, self._file_bytes, note)

    def staged(self, handles: Iterable[Handle]) -> list[str]:
        return [entry.path for entry in entries_of(handles)]

    def _existing(self) -> DeltaTable:
        table = self._log.opened()
        if table is None:
            raise SinkError(f"{self._log.subject}: the table does not exist any more. Restore it.")
        return table

    def _addition(self, table: DeltaTable, rows: pa.Schema) -> ColumnAddition | None:
        """The columns that this sink adds to the table, whose other columns and properties are checked."""
        if not self._add_columns:
            return None
        subject = self._log.subject
        with self._log.translated("read the table"):
            mark = {MARKED: {"sink": self._log.sink, "added_columns": missing_columns(table, rows)}}
            addition = column_addition(subject, table, rows, self._keys, mark)
        if addition is not None:
            self._check_existing(table, pa.schema([field for field in rows if field.name not in addition.columns]))
        return addition

    def _check_existing(self, table: DeltaTable, schema: pa.Schema) -> None:
        with self._log.translated("read the table"):
            check_features(self._log.subject, table)
            otherwise = hint(missing_columns(table, schema), self._add_columns)
            check_rows(self._log.subject, table, columns_of(schema), otherwise)
            if self._keys:
                check_replaceable(self._log.subject, table)
            partition_by = tuple(table.metadata().partition_columns)
        if self._partition_by and self._partition_by != partition_by:
            raise SinkError(
                f"{self._log.subject}: partition_by is {', '.join(self._partition_by)}, and the table is partitioned "
                f"by {', '.join(partition_by) or 'nothing'}. Remove partition_by, or write to another table."
            )
        check_partitions(self._log.subject, columns_of(schema), partition_by)

    def _shape_of(self, table: DeltaTable, rows: pa.Schema) -> RowShape:
        """How rows with these columns are written to the table."""
        partition_by = tuple(table.metadata().partition_columns)
        required = required_columns(table) & set(rows.names)
        return RowShape(self._log.subject, rows, columns_of(rows), partition_by, required, self._keys)
