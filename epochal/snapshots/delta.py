"""Deltas: changes of one subtask to one state table in one epoch, as a Parquet file.

Columns of ``StateTable.delta_schema``, sorted by (key group, key), at most one row per key; zstd; a checksum in each
page. The file's metadata ``epochal`` (JSON) has format, table, branch, epoch, subtask and parallelism.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt, InvalidKey, SchemaError
from epochal.snapshots import layout
from epochal.snapshots.layout import FORMAT, check_format
from epochal.snapshots.manifest import DeltaFile, FileReference
from epochal.snapshots.store import SnapshotStore
from epochal.state.column_bytes import column
from epochal.state.declared_rows import as_declared
from epochal.state.key_codec import KeyCodec
from epochal.state.key_order import common_width, order_by_group_and_key, taken
from epochal.state.table import StateTable

PUT, DELETE = "put", "delete"
ROW_GROUP = 16_384
"""Maximum number of rows that are read for one key."""


class FileWriter(Protocol):
    """A store, or the files of a task."""

    def write_file(self, path: str, data: pa.Buffer, rows: int) -> FileReference:
        """Write a file that a manifest will name."""


@dataclass(frozen=True)
class SortedChanges:
    """Changes in the order of a delta: columns of ``StateTable.delta_schema``, and the encoded full key of each row.
    Those of a run without deleted keys have no ``_op``."""

    table: StateTable
    rows: pa.Table
    keys: pa.BinaryArray

    @classmethod
    def of(cls, table: StateTable, rows: pa.Table) -> SortedChanges:
        """``rows``: of a delta or a run, in its order."""
        return cls(table, rows, KeyCodec(table.key_schema).encode_array(rows))

    @property
    def deleted(self) -> npt.NDArray[np.bool_]:
        """Mask of the deleted keys."""
        if "_op" not in self.rows.column_names:
            return np.zeros(self.rows.num_rows, bool)
        return cast(npt.NDArray[np.bool_], pc.not_equal(self.rows.column("_op"), PUT).to_numpy())

    @property
    def groups(self) -> npt.NDArray[np.int32]:
        return cast(npt.NDArray[np.int32], self.rows.column("_kg").to_numpy())


def select_changes(table: StateTable, changes: pa.Table) -> pa.Table:
    """The columns of a delta, in their order. Raises ``SchemaError`` when one is missing."""
    names, present = table.delta_schema.names, set(changes.column_names)
    missing = [name for name in names if name not in present]
    if missing:
        raise SchemaError(f"Changes of state {table.id!r} lack the columns {', '.join(missing)}.")
    return changes.select(names)


def sort_changes(table: StateTable, changes: pa.Table) -> SortedChanges:
    """Bring changes into a delta's order and types.

    Raises ``SchemaError`` when a column is missing, ``InvalidKey`` when a key is null or changes twice.
    """
    selected = select_changes(table, changes)
    arrays = [column(selected, field) for field in table.delta_schema]
    rows = pa.table(arrays, schema=table.delta_schema)
    keys = KeyCodec(table.key_schema).encode_array(rows)
    groups = rows.column("_kg").to_numpy()
    order, repeated = order_by_group_and_key(groups, keys)
    if repeated:
        raise InvalidKey(f"State {table.id!r} received two changes of one key in one epoch; stage only the last one.")
    return SortedChanges(table, rows.take(pa.array(order)), taken(keys, order, common_width(keys)))


def write_delta(files: FileWriter, changes: SortedChanges, at: EpochKey, subtask: int, parallelism: int) -> DeltaFile:
    """Write a delta under a new name, to a store or as one of the files of a task."""
    about = {"format": FORMAT, "table": changes.table.id, "subtask": subtask, "parallelism": parallelism}
    data = encode_parquet(changes.table, changes.rows, {**about, "branch": at.branch, "epoch": at.epoch})
    file = files.write_file(layout.delta(at, changes.table.id, subtask), data, changes.rows.num_rows)
    return DeltaFile(table=changes.table.id, subtask=subtask, parallelism=parallelism, file=file)


def read_delta(
    store: SnapshotStore, table: StateTable, delta: DeltaFile, groups: tuple[int, int] | None = None
) -> pa.Table:
    """All rows of a delta, checked, with the columns of ``table.delta_schema``.

    ``groups``: first and last needed key group; rows of other key groups are included only if they share a row group.
    The checksum of the whole file is checked.
    """
    of = f"state {table.id!r}"
    return decode_parquet(store, table, store.read_file(delta.file, of), delta.file, table.delta_schema, groups)


def rows_of_groups(rows: pa.Table, groups: range) -> pa.Table:
    """The rows, sorted by key group, that are in some key groups; no byte is copied for consecutive ones."""
    present = rows.column("_kg").to_numpy()
    first, end = np.searchsorted(present, [groups.start, groups[-1] + 1])
    rows = rows.slice(first, end - first)
    if groups.step == 1:
        return rows
    mine = (present[first:end] - groups.start) % groups.step == 0
    return rows if mine.all() else rows.filter(pa.array(mine))


def encode_parquet(table: StateTable, rows: pa.Table, about: dict[str, object]) -> pa.Buffer:
    """Rows of a delta or a base as a Parquet file."""
    described = rows.replace_schema_metadata({"epochal": json.dumps(about, sort_keys=True)})
    target = pa.BufferOutputStream()
    pq.write_table(
        described,
        target,
        row_group_size=ROW_GROUP,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in ("_kg", "_op") if name in rows.column_names],
        column_encoding=integer_encodings(rows.schema),
        write_statistics=["_kg", *(field.name for field in (*table.time_schema, *table.owner_schema))],
        write_page_checksum=True,
    )
    return target.getvalue()


def integer_encodings(schema: pa.Schema) -> dict[str, str]:
    """Parquet encoding of integer columns of a delta or a base, except for ``_kg``: bit-packed differences. There is
    less data to compress, so that files are written in half the time, and are smaller."""
    return {field.name: "DELTA_BINARY_PACKED" for field in schema if field.name != "_kg" and _is_integer(field.type)}


def _is_integer(type: pa.DataType) -> bool:
    of = (pa.types.is_signed_integer, pa.types.is_date32, pa.types.is_timestamp)
    return any(is_one(type) for is_one in of)


def described(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Metadata of a delta or a base; empty for other files."""
    about: dict[str, Any] = json.loads((metadata.metadata or {}).get(b"epochal", b"{}"))
    return about


def decode_parquet(
    store: SnapshotStore,
    table: StateTable,
    data: bytes,
    file: FileReference,
    schema: pa.Schema,
    groups: tuple[int, int] | None = None,
) -> pa.Table:
    """The inverse of :func:`encode_parquet`, for a whole file whose checksum is right. ``groups``: of
    :func:`read_delta`.

    A file of an earlier declaration of the state table is converted to the present one.
    """
    try:
        source = pq.ParquetFile(pa.BufferReader(data))
        check_format(f"State file {store.place_of(file)}", described(source.metadata))
        rows = source.read() if groups is None else source.read_row_groups(_holding(source.metadata, *groups))
        return as_declared(rows, schema, table)
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        raise FileCorrupt(
            f"{store.place_of(file)} has the right checksum, but is not a Parquet file of state {table.id!r}: {error}."
        ) from error


def bounds_of_row_groups(metadata: pq.FileMetaData) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Smallest and largest key group of each row group."""
    place = metadata.schema.names.index("_kg")
    bounds = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(place).statistics
        known = statistics is not None and statistics.has_min_max
        bounds.append((statistics.min, statistics.max) if known else (0, np.iinfo(np.int32).max))
    least_and_greatest = np.array(bounds, np.int32).reshape(-1, 2)
    return least_and_greatest[:, 0], least_and_greatest[:, 1]


def _holding(metadata: pq.FileMetaData, first_group: int, last_group: int) -> list[int]:
    least, greatest = bounds_of_row_groups(metadata)
    found: list[int] = np.flatnonzero((greatest >= first_group) & (least <= last_group)).tolist()
    return found
