"""Transaction of one task attempt of the Iceberg sink."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from epochal.backends.iceberg.address import CatalogAddress
from epochal.backends.iceberg.data_file import encoded, file_numbers, written
from epochal.backends.tables.folder import translated, unique_name
from epochal.backends.text_columns import check_utf8
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import RowRejected, SinkError
from epochal.faults import declare

UPLOADED: Final = declare("T3.iceberg.uploaded", "files of the task are in the table's folder, no snapshot names them")
HELD_BYTES: Final = 128 * 1024 * 1024
"""Size in memory of the rows of which a task writes files, one or more for each partition."""

_OF_THE_CATALOG: Final = ("token", "credential")
"""Properties that tasks, which do not call the catalog, do not need."""


@dataclass(frozen=True)
class TaskTable:
    """The part of the table that a task needs: columns, partitions and properties. Serialisable.

    ``subject``: the sink or source, in messages. ``metadata``: JSON. ``schema``: columns of the rows. ``location``: of
    the data files. ``properties``: with which the library reaches files, without secrets of the catalog, which each
    process finds itself."""

    subject: str
    metadata: str
    schema: pa.Schema
    location: str
    catalog: CatalogAddress
    properties: Mapping[str, str]

    @classmethod
    def of(
        cls,
        subject: str,
        metadata: TableMetadata,
        schema: pa.Schema,
        location: str,
        catalog: CatalogAddress,
        properties: Mapping[str, Any],
    ) -> TaskTable:
        without_history = metadata.model_copy(
            update={
                "current_snapshot_id": None,
                "snapshots": [],
                "snapshot_log": [],
                "metadata_log": [],
                "refs": {},
                "statistics": [],
                "partition_statistics": [],
            }
        )
        private = {*catalog.secret_names, *_OF_THE_CATALOG}
        public = {name: str(value) for name, value in properties.items() if name not in private}
        return cls(subject, without_history.model_dump_json(), schema, location, catalog, public)

    def conforming(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns of the table. Raises ``RowRejected`` for a null in a required column, and for text
        that is not UTF-8."""
        check_utf8(batch, "Iceberg")
        for field in self.schema:
            if not field.nullable and batch.column(field.name).null_count:
                raise RowRejected(
                    f"{self.subject}: a row has no value for column {field.name!r}, which the table requires. "
                    "Filter such rows, or replace the null with coalesce."
                )
        return batch.cast(self.schema)

    def io(self) -> PyArrowFileIO:
        """Access to files, in this process. Raises ``OptionError`` for a secret that is missing."""
        return PyArrowFileIO({**self.properties, **self.catalog.revealed()})

    def below(self, folder: str) -> TableMetadata:
        """Metadata with which the library writes files below a folder of the data files."""
        metadata = TableMetadataUtil.parse_raw(self.metadata)
        below = f"{self.location}/{folder}"
        properties = {**metadata.properties, TableProperties.WRITE_DATA_PATH: below}
        return metadata.model_copy(update={"properties": properties})


class IcebergTransaction(SinkTransaction):
    """One task attempt's files; none without rows. ``place``: their folder, in that of the data files."""

    def __init__(self, table: TaskTable, place: str, task: TaskScope) -> None:
        self._place = place
        self._table = table
        self._task = task
        self._name = unique_name(task)
        self._numbers = file_numbers()
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._metadata: TableMetadata | None = None
        self._io: PyArrowFileIO | None = None
        self._entries: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._held.append(self._table.conforming(batch))
        self._held_bytes += batch.nbytes
        if self._held_bytes >= HELD_BYTES:
            self._flush()

    def pre_commit(self) -> Handle:
        self._flush()
        payload: dict[str, Any] = {}
        if self._entries and self._metadata is not None:
            payload = {"files": self._entries, "schema": self._metadata.current_schema_id}
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=sum(entry["rows"] for entry in self._entries),
            bytes=sum(entry["size"] for entry in self._entries),
            payload=payload,
        )

    def discard(self) -> None:
        self._held.clear()
        for entry in self._entries:
            with suppress(OSError, SinkError):  # the sweep finds a file that cannot be removed now
                if self._io is not None:
                    self._io.delete(entry["path"])

    def _flush(self) -> None:
        if not self._held:
            return
        if self._metadata is None or self._io is None:
            self._metadata, self._io = self._table.below(self._place), self._table.io()
        rows = pa.Table.from_batches(self._held, self._table.schema)
        with translated(self._table.subject, "write files"):
            try:
                files = written(self._metadata, self._io, rows, self._name, self._numbers)
            except (ValueError, pa.ArrowException) as error:
                if isinstance(error, OSError):
                    raise
                raise SinkError(f"{self._table.subject} cannot write these rows: {error}.") from error
        self._held, self._held_bytes = [], 0
        self._entries += [encoded(file, self._metadata) for file in files]
        UPLOADED.hit(self._task.epoch.epoch)
