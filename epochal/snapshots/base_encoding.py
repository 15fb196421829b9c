"""Bases as files: what :mod:`base_reading` reads, group by group.

A row group has rows of one key group only; a large key group has several, one after another. The file's metadata
``epochal`` (JSON) says, beside what the file is of, where each key group lies and the CRC-32 of its bytes:
``key_groups``, in order, the first at byte 4, each right after the one before. Before the Parquet footer lies the
*index*: the same footer, compressed. The manifest has the index's place and checksum, so that a subtask which needs
some key groups reads the index and those groups.

Where key groups are small, row groups span them, as in format 1, and there is no index: such a file is small, too, and
read whole. A row group costs time of its own, which should be little beside that for its rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from epochal.contracts.identity import EpochKey
from epochal.snapshots.delta import ROW_GROUP, encode_parquet, integer_encodings
from epochal.snapshots.formats import FORMAT
from epochal.snapshots.manifest import FilePart
from epochal.state.table import StateTable

LEAST_CHUNK_BYTES = 64 << 10
"""Of a column of a key group, on average, in memory: with less, row groups span key groups."""
INDEX_CODEC, INDEX_LEVEL = "zstd", 3
MAGIC = b"PAR1"
END_BYTES = 8
"""Of a Parquet file: the footer's length and the magic number."""


@dataclass(frozen=True)
class EncodedBase:
    """``index``: ``None`` where the file is to be read whole."""

    data: memoryview
    index: FilePart | None


def base_schema(table: StateTable) -> pa.Schema:
    """``_kg`` int32, the full key, the value columns."""
    return pa.schema([field for field in table.delta_schema if field.name != "_op"])


def required_keys(table: StateTable, schema: pa.Schema) -> pa.Schema:
    """The columns of a base in which no key is null; the Parquet columns say so, and take less time and space."""
    keys = set(table.key_schema.names)
    return pa.schema([field.with_nullable(field.nullable and field.name not in keys) for field in schema])


def encoded_base(
    table: StateTable,
    at: EpochKey,
    first_group: int,
    last_group: int,
    rows: pa.Table,
    format: int = FORMAT,
    plain_integers: bool = False,
) -> EncodedBase:
    """Rows, sorted by (key group, key), as a file. The same rows give the same bytes, as long as the same libraries
    write them. ``plain_integers``: as bases were until integers were differences."""
    about: dict[str, object] = {
        "format": format,
        "table": table.id,
        "branch": at.branch,
        "epoch": at.epoch,
        "first_group": first_group,
        "last_group": last_group,
    }
    rows = rows.select(base_schema(table).names)
    if not any(rows.column(name).null_count for name in table.key_schema.names):
        rows = rows.cast(required_keys(table, rows.schema))
    groups = _key_groups(rows, first_group, last_group) if format > 1 else []
    if groups and rows.nbytes >= LEAST_CHUNK_BYTES * rows.num_columns * len(groups):
        return _by_key_group(table, rows, groups, about, plain_integers)
    return EncodedBase(memoryview(encode_parquet(table, rows, about, plain_integers)), None)


def _key_groups(rows: pa.Table, first_group: int, last_group: int) -> list[tuple[int, int, int]]:
    """Those that have rows, and the places of the first one and after the last one of each."""
    bounds = np.searchsorted(rows.column("_kg").to_numpy(), np.arange(first_group, last_group + 2)).tolist()
    return [(group, first, end) for group, (first, end) in enumerate(pairwise(bounds), first_group) if first < end]


def _by_key_group(
    table: StateTable,
    rows: pa.Table,
    groups: list[tuple[int, int, int]],
    about: dict[str, object],
    plain_integers: bool,
) -> EncodedBase:
    target = io.BytesIO()
    described: list[dict[str, Any]] = []
    options = _options(table, rows.schema, plain_integers)
    with pq.ParquetWriter(target, rows.schema.remove_metadata(), **options) as writer:
        for group, first, end in groups:
            begin = target.tell()
            writer.write_table(rows.slice(first, end - first), row_group_size=ROW_GROUP)
            described.append(_described(target, begin, group, -(-(end - first) // ROW_GROUP)))
        writer.add_key_value_metadata({"epochal": json.dumps({**about, "key_groups": described}, sort_keys=True)})
    return _with_index(target)


def _options(table: StateTable, schema: pa.Schema, plain_integers: bool) -> dict[str, Any]:
    """Keys fall into key groups by their hashes, so that every row group has about the same least and greatest one."""
    others = [name for name in schema.names if name != "_kg"]
    return {
        "compression": {"_kg": "none", **dict.fromkeys(others, "zstd")},
        "compression_level": dict.fromkeys(others, 1),
        "use_dictionary": ["_kg"],
        "column_encoding": None if plain_integers else integer_encodings(schema),
        "write_statistics": ["_kg", *table.time_schema.names],
        "write_page_checksum": True,
    }


def _described(target: io.BytesIO, begin: int, group: int, row_groups: int) -> dict[str, Any]:
    with target.getbuffer() as written:
        content = written[begin:]
        crc32, size = zlib.crc32(content), len(content)
        content.release()
    return {"group": group, "bytes": size, "row_groups": row_groups, "crc32": crc32}


def _with_index(target: io.BytesIO) -> EncodedBase:
    size = target.seek(0, io.SEEK_END)
    target.seek(size - END_BYTES)
    footer_bytes = int.from_bytes(target.read(4), "little")
    offset = size - END_BYTES - footer_bytes
    target.seek(offset)
    footer = target.read()
    index = pa.Codec(INDEX_CODEC, INDEX_LEVEL).compress(footer, asbytes=True)
    target.seek(offset)
    target.write(index)
    target.write(footer)
    return EncodedBase(
        target.getbuffer(), FilePart(offset=offset, bytes=len(index), sha256=hashlib.sha256(index).hexdigest())
    )
