"""``iceberg.sink``: appends each epoch to an Iceberg table in one snapshot. See :mod:`epochal.backends.tables.sink`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyiceberg.table import Table as LibraryTable

from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.data_file import entries_of
from epochal.backends.iceberg.schema import (
    check_rows,
    check_supported,
    new_partitions,
    new_schema,
    partition_of,
    retention_warning,
)
from epochal.backends.iceberg.table import IcebergTable, data_folder, data_location, files_below
from epochal.backends.iceberg.transaction import IcebergTransaction, TaskTable
from epochal.backends.tables.folder import ROOT, TableFolder, attempt_folder, merged_folder
from epochal.backends.tables.sink import Conforming, TableSink
from epochal.contracts.backend import Buffering, SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SinkError


class IcebergSink(TableSink):
    """Sink backend of ``iceberg.sink``. ``partition_by``: partitions with which a missing table is created; an existing
    one has its own."""

    def __init__(
        self,
        sink: SinkPlace,
        address: IcebergAddress,
        partition_by: Sequence[str] = (),
        buffering: Buffering | None = None,
    ) -> None:
        super().__init__(sink, buffering)
        self._address = address
        self._partition_by = tuple(partition_by)
        self._table = IcebergTable(sink.sink, address)
        self._schema: pa.Schema | None = None
        self._task_table: TaskTable | None = None

    @property
    def kind(self) -> str:
        return "iceberg"

    @property
    def target(self) -> str:
        return self._address.target

    @property
    def table(self) -> IcebergTable:
        return self._table

    def folder(self) -> TableFolder:
        with self._table.translated("reach the table"):
            if self._task_table is not None:  # without a request to the catalog: recovery sweeps many epochs
                return files_below(self._table.subject, self._task_table.io(), self._task_table.location)
            return data_folder(self._table.subject, self._existing())

    def check_types(self, schema: pa.Schema) -> None:
        new_partitions(self._table.subject, new_schema(self._table.subject, schema), self._partition_by)
        self._schema = schema

    def check_table(self, schema: pa.Schema) -> None:
        table = self._table.opened()
        if table is not None:
            self._check_existing(table, schema)

    def warnings(self) -> list[str]:
        table = self._table.opened()
        warning = None if table is None else retention_warning(self._table.subject, table.metadata)
        return [] if warning is None else [warning]

    def prepare(self) -> None:
        schema = self._schema
        if schema is None:
            return  # this process commits what others have staged
        table = self._table.opened()
        if table is None:
            self._table.create(schema, self._partition_by)
            table = self._existing()
        self._task_table = self._shape(table, schema)

    def files(self, task: TaskScope) -> IcebergTransaction:
        if self._task_table is None:
            raise SinkError(f"{self._table.subject} was not prepared before its first epoch.")
        return IcebergTransaction(self._task_table, attempt_folder(task.epoch), task)

    def conforming(self) -> Conforming:
        if self._task_table is None:
            raise SinkError(f"{self._table.subject} was not prepared before its first epoch.")
        return self._task_table.conforming

    def merged_files(self, task: TaskScope, schema: pa.Schema) -> IcebergTransaction:
        table = self._existing()
        return IcebergTransaction(self._shape(table, schema), merged_folder(task.epoch), task)

    def staged(self, handles: Iterable[Handle]) -> list[str]:
        paths = [str(entry["path"]) for entry in entries_of(handles)]
        # Names of files are unique, so that the place of the table's folder is not needed.
        return [path[path.rindex(f"/{ROOT}/") + 1 :] for path in paths]

    def _shape(self, table: LibraryTable, schema: pa.Schema) -> TaskTable:
        typed = self._check_existing(table, schema)
        return TaskTable.of(
            self._table.subject, table.metadata, typed, data_location(table), self._address.catalog, table.io.properties
        )

    def _existing(self) -> LibraryTable:
        table = self._table.opened()
        if table is None:
            raise SinkError(f"{self._table.subject}: the table does not exist.")
        return table

    def _check_existing(self, table: LibraryTable, schema: pa.Schema) -> pa.Schema:
        subject = self._table.subject
        check_supported(subject, table.metadata)
        if self._partition_by:
            options = [partition_of(subject, text) for text in self._partition_by]
            expected = [(column, str(transform)) for column, transform, _ in options]
            names = table.schema()
            found = [(names.find_column_name(field.source_id), str(field.transform)) for field in table.spec().fields]
            if expected != found:
                raise SinkError(
                    f"{subject}: partition_by is {', '.join(self._partition_by)}, and the table has other partitions: "
                    f"{table.spec()}. Remove partition_by, or write to another table."
                )
        return check_rows(subject, table.metadata, schema)
