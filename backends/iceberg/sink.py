"""``iceberg.sink``: appends each epoch to an Iceberg table in one snapshot. See :mod:`epochal.backends.tables.sink`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table as LibraryTable

from epochal.backends.iceberg.added_columns import missing_columns, staged_columns
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
from epochal.backends.tables.added_columns import ColumnAddition, add_missing_columns, hint, note
from epochal.backends.tables.folder import ROOT, TableFolder, attempt_folder, merged_folder
from epochal.backends.tables.sink import Conforming, TableSink
from epochal.contracts.backend import Buffering, SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SinkError


class IcebergSink(TableSink):
    """Sink backend of ``iceberg.sink``. ``partition_by``: partitions with which a missing table is created; an existing
    one has its own. ``add_columns``: add columns that the table lacks."""

    def __init__(
        self,
        sink: SinkPlace,
        address: IcebergAddress,
        partition_by: Sequence[str] = (),
        buffering: Buffering | None = None,
        add_columns: bool = False,
    ) -> None:
        super().__init__(sink, buffering)
        self._add_columns = add_columns
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
        if table is not None and self._addition(table, schema) is None:
            self._check_existing(table, schema)

    def warnings(self) -> list[str]:
        table, schema = self._table.opened(), self._schema
        if table is None:
            return []
        addition = None if schema is None else self._addition(table, schema)
        added = None if addition is None else note(self._table.subject, addition)
        return [each for each in (retention_warning(self._table.subject, table.metadata), added) if each is not None]

    def prepare(self) -> None:
        schema = self._schema
        if schema is None:
            return  # this process commits what others have staged
        table = self._table.opened()
        if table is None:
            self._table.create(schema, self._partition_by)
            table = self._existing()
        if self._add_columns:
            add_missing_columns(self._table.subject, lambda: self._addition(self._existing(), schema))
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

    def _addition(self, table: LibraryTable, rows: pa.Schema) -> ColumnAddition | None:
        """The columns that this sink adds to the table, whose other columns and properties are checked."""
        if not self._add_columns:
            return None
        staged = staged_columns(self._table.subject, table, rows)
        if staged is None:
            return None
        self._check_existing(table, rows, staged.schema)
        names = ", ".join(staged.columns)
        texts = (f"add the columns {names}", f"the columns {names} are added")
        commit = partial(self._table.commit, table, staged.updates, staged.requirements, *texts)
        return ColumnAddition(staged.columns, commit)

    def _check_existing(self, table: LibraryTable, rows: pa.Schema, columns: Schema | None = None) -> pa.Schema:
        """Check rows against the table, which is to have other ``columns`` then. Returns the columns of the rows as the
        table has them."""
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
        otherwise = hint(missing_columns(table, rows), self._add_columns)
        return check_rows(subject, columns or table.schema(), table.metadata.format_version, rows, otherwise)
