"""Some key groups of a base, with ranged reads: their bytes and the index, nothing else. All is checked.

:mod:`base_encoding` says where they lie. A base without an index, of format 1 or small, is read whole. The first bases
by key group have the sha256 of each key group instead of the CRC-32.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from epochal.errors import FileCorrupt
from epochal.snapshots.base_encoding import INDEX_CODEC, MAGIC, base_schema
from epochal.snapshots.delta import decode_parquet, described
from epochal.snapshots.formats import check_format
from epochal.snapshots.manifest import BaseFile, FilePart
from epochal.snapshots.store import SnapshotStore
from epochal.state.declared_rows import as_declared
from epochal.state.keygroups import Groups
from epochal.state.table import StateTable


@dataclass(frozen=True)
class _KeyGroup:
    """Where a key group lies in a file, which row groups are its, and one checksum: the other is ``None``."""

    group: int
    offset: int
    bytes: int
    row_groups: range
    crc32: int | None
    sha256: str | None

    @property
    def end(self) -> int:
        return self.offset + self.bytes

    def is_damaged(self, file: memoryview) -> bool:
        """Whether ``file``, the whole of it, does not have the key group's bytes in their place."""
        content = file[self.offset : self.end]
        if self.sha256 is not None:
            return hashlib.sha256(content).hexdigest() != self.sha256
        return zlib.crc32(content) != self.crc32


@dataclass(frozen=True)
class _Index:
    metadata: pq.FileMetaData
    key_groups: tuple[_KeyGroup, ...]


def read_base(store: SnapshotStore, table: StateTable, base: BaseFile) -> pa.Table:
    """All rows of a base, with the columns that ``table`` declares. Raises ``FileMissing``, ``FileCorrupt``."""
    of = f"state {table.id!r} at {base.at}"
    return decode_parquet(store, table, store.read_file(base.file, of), base.file, base_schema(table))


def read_groups(store: SnapshotStore, table: StateTable, base: BaseFile, groups: Groups) -> pa.Table:
    """The rows of some key groups, with the columns that ``table`` declares, sorted by (key group, key).

    ``groups``: ascending. Raises ``FileMissing``; ``FileCorrupt``, naming file, state table and key group.
    """
    requested = groups[(groups >= base.first_group) & (groups <= base.last_group)]
    if len(requested) > base.last_group - base.first_group:
        return read_base(store, table, base)
    if base.index is None:
        rows = read_base(store, table, base)
        return rows.filter(pa.array(np.isin(rows.column("_kg").to_numpy(), requested)))
    of = f"state {table.id!r} at {base.at}"
    index = _read_index(store, base, base.index, of)
    needed = set(requested.tolist())
    found = [each for each in index.key_groups if each.group in needed]
    if not found:
        return base_schema(table).empty_table()
    numbers = [number for each in found for number in each.row_groups]
    source = pa.BufferReader(pa.py_buffer(_sparse(store, base, found, of)))
    try:
        rows = pq.ParquetFile(source, metadata=index.metadata).read_row_groups(numbers)
        return as_declared(rows, base_schema(table), table)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise FileCorrupt(
            f"{store.location(base.file.path)} has the right checksums, but is no Parquet of {of}: {error}."
        ) from error


def damaged_groups(data: bytes, base: BaseFile) -> list[int] | None:
    """The key groups whose bytes are not those that were written; ``None`` where that cannot be found out."""
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
    about = described(metadata)["key_groups"]
    offsets = accumulate((each["bytes"] for each in about), initial=len(MAGIC))
    firsts = accumulate((each["row_groups"] for each in about), initial=0)
    return _Index(
        metadata,
        tuple(
            _KeyGroup(
                each["group"],
                offset,
                each["bytes"],
                range(first, first + each["row_groups"]),
                each.get("crc32"),
                each.get("sha256"),
            )
            for each, offset, first in zip(about, offsets, firsts, strict=False)
        ),
    )


def _sparse(store: SnapshotStore, base: BaseFile, found: Sequence[_KeyGroup], of: str) -> npt.NDArray[np.uint8]:
    """As large as the file, with the bytes of these key groups in their places; the rest takes no memory."""
    runs: list[list[_KeyGroup]] = []
    for each in found:
        if runs and runs[-1][-1].end == each.offset:
            runs[-1].append(each)
        else:
            runs.append([each])
    ranges = [(run[0].offset, run[-1].end - run[0].offset) for run in runs]
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
