"""Row groups of deltas and bases that can contain certain key groups, as Arrow tables.

Files never change, so that row groups are cached up to a size limit: the next look-up at the same or a close epoch
reads no files. Several threads read small files concurrently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from epochal.errors import FileCorrupt
from epochal.snapshots.delta import bounds_of_row_groups, described
from epochal.snapshots.immutable_cache import SizedCache
from epochal.snapshots.layout import check_format
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference
from epochal.snapshots.store import SnapshotStore
from epochal.state.declared_rows import as_declared
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import subtask_of
from epochal.state.table import StateTable

THREADS = 8
_FOOTER_BYTES, _ROW_GROUP_BYTES = 32 << 20, 192 << 20
SMALL_BYTES = 256 << 10
"""Maximum size of files that are read with one request and checked as a whole."""

Input = TypeVar("Input")
Output = TypeVar("Output")
Groups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Footer:
    """A file's metadata, and the smallest and largest key group of each of its row groups."""

    metadata: pq.FileMetaData
    first: Groups
    last: Groups


@dataclass
class RowGroup:
    """A row group, sorted by (key group, key). ``keys``: its encoded full keys, after the first search."""

    rows: pa.Table
    groups: Groups
    keys: pa.BinaryArray | None = None

    def rows_of(self, codec: KeyCodec, group: int, beginning: bytes) -> pa.Table:
        """Rows of a key group whose keys begin with these bytes."""
        if self.keys is None:
            self.keys = codec.encode_array(self.rows)
        first, end = (int(place) for place in np.searchsorted(self.groups, [group, group + 1]))
        start = bisect_left(self.keys, beginning, first, end, key=_python)
        after = start
        while after < end and _python(self.keys[after]).startswith(beginning):
            after += 1
        return self.rows.slice(start, after - start)


_footers: SizedCache[_Footer] = SizedCache(_FOOTER_BYTES)
_row_groups: SizedCache[RowGroup] = SizedCache(_ROW_GROUP_BYTES)


def can_hold(file: DeltaFile | BaseFile, groups: Groups) -> npt.NDArray[np.bool_]:
    """Mask of the key groups of which the file can have rows."""
    if isinstance(file, BaseFile):
        within = (groups >= file.first_group) & (groups <= file.last_group)
        return within if file.step == 1 else within & ((groups - file.first_group) % file.step == 0)
    return np.equal(subtask_of(groups, file.parallelism), file.subtask)


def read_rows(
    store: SnapshotStore, table: StateTable, file: FileReference, groups: Groups | None, *, keep: bool = True
) -> pa.Table:
    """Rows of some or all key groups in a file, with the columns that ``table`` declares, sorted as in the file.

    Only deltas have ``_op``. ``keep``: cache the row groups. Raises ``FileMissing``,
    ``FileCorrupt``.
    """
    of = f"state {table.id!r}"
    requested = None if groups is None else np.unique(groups)
    with _damage(store, file, of):
        rows = _read(store, file, requested, of, keep)
        return conformed(rows if requested is None else _of_groups(rows, requested), table)


def column_names(store: SnapshotStore, table: StateTable, file: FileReference) -> frozenset[str]:
    """The columns that the file has. Raises ``FileMissing``, ``FileCorrupt``."""
    of = f"state {table.id!r}"
    with _damage(store, file, of):
        return frozenset(_opened(store, file, of).schema_arrow.names)


def cached_row_groups(file: FileReference, group: int) -> list[RowGroup] | None:
    """Row groups that can contain a key group; ``None`` if some are not cached."""
    footer = _footers.get(file.sha256)
    if footer is None:
        return None
    bounds = enumerate(zip(footer.first.tolist(), footer.last.tolist(), strict=True))
    found = [_row_groups.get((file.sha256, number)) for number, (first, last) in bounds if first <= group <= last]
    cached = [row_group for row_group in found if row_group is not None]
    return cached if len(cached) == len(found) else None


def conformed(rows: pa.Table, table: StateTable) -> pa.Table:
    """Rows with the columns that the table declares; files may lack columns or have narrower types. Bases have no
    ``_op``."""
    fields = [field for field in table.delta_schema if field.name != "_op" or "_op" in rows.column_names]
    return as_declared(rows, fields, table, in_one_chunk=False)


def concurrently(work: Callable[[Input], Output], inputs: Sequence[Input]) -> Iterable[Output]:
    """Results of ``work`` for each input, in order; several threads process several inputs."""
    return map(work, inputs) if len(inputs) < 2 else _pool().map(work, inputs)


def forget() -> None:
    """Clear the caches, to measure cold reads."""
    _footers.clear()
    _row_groups.clear()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="snapshot-row-groups")


@contextmanager
def _damage(store: SnapshotStore, file: FileReference, of: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        raise FileCorrupt(
            f"{store.location(file.path)}, of {of}, is damaged: {error}. "
            "Restore the file from a copy, or read a snapshot that does not need it."
        ) from error


def _read(store: SnapshotStore, file: FileReference, requested: Groups | None, of: str, keep: bool) -> pa.Table:
    footer = _footers.get(file.sha256)
    source = None
    if footer is None:
        source = _opened(store, file, of)
        check_format(f"State file {store.location(file.path)}", described(source.metadata))
        footer = _footer(source.metadata)
        _footers.put(file.sha256, footer, 2000 + 1000 * footer.metadata.num_row_groups)
    numbers = range(footer.metadata.num_row_groups) if requested is None else _with_groups(footer, requested)
    cached = {number: _row_groups.get((file.sha256, number)) for number in numbers}
    known = {number: row_group.rows for number, row_group in cached.items() if row_group is not None}
    missing = [number for number in numbers if number not in known]
    if missing:
        source = source or _opened(store, file, of, footer.metadata)
        for number in missing:
            known[number] = source.read_row_group(number, use_threads=False)
            if keep:
                # The extra half is for the keys, which are encoded when needed.
                size = 1000 + known[number].nbytes * 3 // 2
                row_group = RowGroup(known[number], known[number].column("_kg").to_numpy())
                _row_groups.put((file.sha256, number), row_group, size)
    if not known:
        return footer.metadata.schema.to_arrow_schema().remove_metadata().empty_table()
    return pa.concat_tables([known[number] for number in numbers])


def _opened(
    store: SnapshotStore, file: FileReference, of: str, metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    whole = file.bytes <= SMALL_BYTES
    source = pa.BufferReader(store.read_file(file, of)) if whole else store.open(file, of)
    return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=not whole)


def _footer(metadata: pq.FileMetaData) -> _Footer:
    return _Footer(metadata, *bounds_of_row_groups(metadata))


def _with_groups(footer: _Footer, requested: Groups) -> list[int]:
    """Row groups whose range contains one of the requested, sorted key groups."""
    following = np.searchsorted(requested, footer.first)
    within = following < len(requested)
    within[within] = requested[following[within]] <= footer.last[within]
    return [int(number) for number in np.flatnonzero(within)]


def _of_groups(rows: pa.Table, requested: Groups) -> pa.Table:
    groups = rows.column("_kg").to_numpy()
    if len(requested) > 16:
        return rows.filter(pa.array(np.isin(groups, requested)))
    firsts, ends = np.searchsorted(groups, requested), np.searchsorted(groups, requested, "right")
    slices = [rows.slice(first, end - first) for first, end in zip(firsts, ends, strict=True) if end > first]
    return pa.concat_tables(slices) if slices else rows.slice(0, 0)


def _python(key: pa.BinaryScalar) -> bytes:
    value: bytes = key.as_py()
    return value
