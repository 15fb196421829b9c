"""Runs of bases as Parquet files, of which a reader can read some key groups.

A row group has rows of one key group only; a large key group has several consecutive row groups. The file's metadata
describe the key groups (:mod:`epochal.snapshots.run_index`), whose filters follow the row groups. Before the Parquet
footer lies the *index*: the same footer, compressed. The manifest has the position and checksum of the index, so that a
subtask that needs some key groups reads the index and those groups only. All reads are checked.

If key groups are small, row groups span several of them, and the file has no index: such a file is small and is read
whole. Each row group has a fixed cost, which should be small compared with the cost of its rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt
from epochal.snapshots.delta import (
    PUT,
    ROW_GROUP,
    decode_parquet,
    described,
    encode_parquet,
    integer_encodings,
)
from epochal.snapshots.key_filter import KeyFilter, KeyHashes
from epochal.snapshots.layout import FORMAT, check_format
from epochal.snapshots.manifest import BaseFile, FilePart
from epochal.snapshots.row_groups import can_hold
from epochal.snapshots.run_index import MAGIC, KeyGroupPart, description, key_group_parts
from epochal.snapshots.store import SnapshotStore
from epochal.state.declared_rows import as_declared
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups
from epochal.state.table import StateTable

LEAST_CHUNK_BYTES = 64 << 10
"""Minimum average size of a key group's column in memory for row groups by key group."""
INDEX_CODEC, INDEX_LEVEL = "zstd", 3
END_BYTES = 8
"""Size of a Parquet file's end: the footer's length and the magic number."""


@dataclass(frozen=True)
class EncodedBase:
    """An encoded base. ``index``: ``None`` if the file is read whole."""

    data: memoryview
    index: FilePart | None


def base_schema(table: StateTable, deletes: bool = False) -> pa.Schema:
    """``_kg`` int32, ``_op`` of a run with ``deletes``, the full key, the value columns."""
    return pa.schema([field for field in table.delta_schema if deletes or field.name != "_op"])


def columns_of(table: StateTable) -> str:
    """Fingerprint of the columns that a file of the table has. A file with another one is converted when it is read,
    and written again by the next compaction."""
    names = [(column.name, column.type) for column in (*table.full_key, *table.value)]
    return f"{zlib.crc32(json.dumps(names).encode()):08x}"


def required_keys(table: StateTable, schema: pa.Schema) -> pa.Schema:
    """Schema of a base without null keys: required Parquet columns take less time and space."""
    keys = set(table.key_schema.names)
    return pa.schema([field.with_nullable(field.nullable and field.name not in keys) for field in schema])


def encoded_base(table: StateTable, at: EpochKey, key_groups: range, rows: pa.Table) -> EncodedBase:
    """Encode rows of these key groups, sorted by (key group, key). Equal rows give equal bytes with the same library
    versions. Rows with the column ``_op`` are a run with deleted keys."""
    about: dict[str, object] = {
        "format": FORMAT,
        "table": table.id,
        "branch": at.branch,
        "epoch": at.epoch,
        "first_group": key_groups.start,
        "last_group": key_groups[-1],
        "step": key_groups.step,
    }
    rows = rows.select(base_schema(table, "_op" in rows.column_names).names)
    if not any(rows.column(name).null_count for name in table.key_schema.names):
        rows = rows.cast(required_keys(table, rows.schema))
    groups = _key_groups(rows, key_groups)
    if groups and rows.nbytes >= LEAST_CHUNK_BYTES * rows.num_columns * len(groups):
        return _by_key_group(table, rows, groups, about)
    return EncodedBase(memoryview(encode_parquet(table, rows, about)), None)


def _key_groups(rows: pa.Table, groups: range) -> list[tuple[int, int, int]]:
    """Key groups with rows, and the positions of the first row and after the last row of each."""
    bounds = np.searchsorted(rows.column("_kg").to_numpy(), [*groups, groups[-1] + 1]).tolist()
    return [(group, *bound) for group, bound in zip(groups, pairwise(bounds), strict=True) if bound[0] < bound[1]]


def _by_key_group(
    table: StateTable,
    rows: pa.Table,
    groups: list[tuple[int, int, int]],
    about: dict[str, object],
) -> EncodedBase:
    target = io.BytesIO()
    described: list[dict[str, Any]] = []
    filters: list[bytes] = []
    hashes, codec = KeyHashes.of(rows, table.owner_schema), KeyCodec(table.key_schema)
    options = _options(table, rows.schema)
    with pq.ParquetWriter(target, rows.schema.remove_metadata(), **options) as writer:
        for group, first, end in groups:
            begin = target.tell()
            writer.write_table(rows.slice(first, end - first), row_group_size=ROW_GROUP)
            filters.append(KeyFilter.of(hashes.some(slice(first, end))).to_bytes())
            first_keys = codec.encode(rows.take(pa.array(range(first, end, ROW_GROUP))))
            with target.getbuffer() as written, written[begin:] as content:
                described.append(description(group, content, first_keys, filters[-1]))
        writer.add_key_value_metadata({"epochal": json.dumps({**about, "key_groups": described}, sort_keys=True)})
    return _with_index(target, b"".join(filters))


def _options(table: StateTable, schema: pa.Schema) -> dict[str, Any]:
    """Parquet options. Keys have no statistics: hashing into key groups makes their ranges overlap in all row
    groups."""
    others = [name for name in schema.names if name != "_kg"]
    return {
        "compression": {"_kg": "none", **dict.fromkeys(others, "zstd")},
        "compression_level": dict.fromkeys(others, 1),
        "use_dictionary": [name for name in ("_kg", "_op") if name in schema.names],
        "column_encoding": integer_encodings(schema),
        "write_statistics": ["_kg", *table.time_schema.names],
        "write_page_checksum": True,
    }


def _with_index(target: io.BytesIO, filters: bytes) -> EncodedBase:
    """The file with ``filters`` and the index before its footer."""
    size = target.seek(0, io.SEEK_END)
    target.seek(size - END_BYTES)
    footer_bytes = int.from_bytes(target.read(4), "little")
    offset = size - END_BYTES - footer_bytes
    target.seek(offset)
    footer = target.read()
    index = pa.Codec(INDEX_CODEC, INDEX_LEVEL).compress(footer, asbytes=True)
    target.seek(offset)
    target.write(filters)
    offset += len(filters)
    target.write(index)
    target.write(footer)
    return EncodedBase(
        target.getbuffer(), FilePart(offset=offset, bytes=len(index), sha256=hashlib.sha256(index).hexdigest())
    )


@dataclass(frozen=True)
class _Index:
    metadata: pq.FileMetaData
    key_groups: tuple[KeyGroupPart, ...]


def read_base(store: SnapshotStore, table: StateTable, base: BaseFile) -> pa.Table:
    """All rows of a run: :func:`base_schema` as ``table`` declares it. Raises ``FileMissing``, ``FileCorrupt``."""
    of = f"state {table.id!r} at {base.at}"
    return decode_parquet(store, table, store.read_file(base.file, of), base.file, base_schema(table, base.deletes))


def without_operations(rows: pa.Table) -> pa.Table:
    """``rows`` without the column ``_op``, unless it marks a deleted key."""
    if "_op" in rows.column_names and pc.all(pc.equal(rows.column("_op"), PUT), min_count=0).as_py():
        return rows.drop_columns(["_op"])
    return rows


def read_groups(store: SnapshotStore, table: StateTable, base: BaseFile, groups: Groups) -> pa.Table:
    """Rows of some key groups, with the columns of :func:`base_schema`, sorted by (key group, key).

    ``groups``: ascending. Raises ``FileMissing``; ``FileCorrupt``, naming file, state table and key group.
    """
    requested = groups[can_hold(base, groups)]
    if len(requested) == len(base.groups):
        return read_base(store, table, base)
    if base.index is None:
        rows = read_base(store, table, base)
        return rows.filter(pa.array(np.isin(rows.column("_kg").to_numpy(), requested)))
    of = f"state {table.id!r} at {base.at}"
    index = _read_index(store, base, base.index, of)
    needed = set(requested.tolist())
    found = [each for each in index.key_groups if each.group in needed]
    if not found:
        return base_schema(table, base.deletes).empty_table()
    numbers = [number for each in found for number in each.row_groups]
    source = pa.BufferReader(pa.py_buffer(_sparse(store, base, found, of)))
    try:
        rows = pq.ParquetFile(source, metadata=index.metadata).read_row_groups(numbers)
        return as_declared(rows, base_schema(table, base.deletes), table)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise FileCorrupt(
            f"{store.location(base.file.path)} has matching checksums, but is not a valid Parquet file of {of}: "
            f"{error}."
        ) from error


def damaged_groups(data: bytes, base: BaseFile) -> list[int] | None:
    """Key groups with damaged bytes; ``None`` if they cannot be determined."""
    content = memoryview(data)
    if base.index is None or _differs(base.index, content[base.index.offset :]):
        return None
    index = _decoded(data[base.index.offset : base.index.offset + base.index.bytes])
    return [each.group for each in index.key_groups if each.is_damaged(content)]


def _read_index(store: SnapshotStore, base: BaseFile, part: FilePart, of: str) -> _Index:
    (data,) = store.read_ranges(base.file, [(part.offset, part.bytes)], of)
    location = store.location(base.file.path)
    if _differs(part, data):
        raise FileCorrupt(_damage(location, of, "its index"))
    index = _decoded(data)
    check_format(f"State file {location}", described(index.metadata))
    return index


def _decoded(data: bytes) -> _Index:
    footer = pa.CompressedInputStream(pa.BufferReader(data), INDEX_CODEC).read()
    metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer))
    return _Index(metadata, key_group_parts(described(metadata)))


def _sparse(store: SnapshotStore, base: BaseFile, found: Sequence[KeyGroupPart], of: str) -> npt.NDArray[np.uint8]:
    """A buffer of the file's size with the bytes of these key groups at their positions; other pages stay
    unallocated."""
    runs: list[list[KeyGroupPart]] = []
    for each in found:
        if runs and runs[-1][-1].rows.end == each.rows.offset:
            runs[-1].append(each)
        else:
            runs.append([each])
    ranges = [(run[0].rows.offset, run[-1].rows.end - run[0].rows.offset) for run in runs]
    file = np.empty(base.file.bytes, np.uint8)
    for (offset, size), data in zip(ranges, store.read_ranges(base.file, ranges, of), strict=True):
        file[offset : offset + size] = np.frombuffer(data, np.uint8)
    for each in found:
        if each.is_damaged(file.data):
            raise FileCorrupt(_damage(store.location(base.file.path), of, f"key group {each.group}"))
    return file


def _differs(part: FilePart, data: bytes | memoryview) -> bool:
    return hashlib.sha256(data[: part.bytes]).hexdigest() != part.sha256


def _damage(location: str, of: str, what: str) -> str:
    return (
        f"{location}, of {of}, is damaged: {what} does not have the checksum recorded for it. "
        "Restore the file from a copy, or start from a snapshot that does not need it."
    )
