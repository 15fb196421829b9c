"""Row groups of deltas and bases that can contain certain key groups, as Arrow tables.

Files never change, so that row groups are cached up to a size limit: the next look-up at the same or a close epoch
reads no files. Several threads read small files concurrently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from epochal.snapshots.key_filter import KeyFilter, KeyHashes
from epochal.snapshots.layout import check_format
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference
from epochal.snapshots.run_index import KeyGroupPart, key_group_parts
from epochal.snapshots.store import SnapshotStore
from epochal.state.declared_rows import as_declared
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import subtask_of
from epochal.state.table import StateTable

THREADS = 8
_FOOTER_BYTES, _FILTER_BYTES, _ROW_GROUP_BYTES = 32 << 20, 64 << 20, 192 << 20
SMALL_BYTES = 256 << 10
"""Maximum size of files that are read with one request and checked as a whole."""

Input = TypeVar("Input")
Output = TypeVar("Output")
Groups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Footer:
    """A file's metadata, the smallest and largest key group of each of its row groups, and the key groups of a run
    whose row groups have one each."""

    metadata: pq.FileMetaData
    first: Groups
    last: Groups
    parts: Mapping[int, KeyGroupPart]

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        keys = sum(len(key) + 50 for part in self.parts.values() for key in part.first_keys)
        return 2000 + 1000 * len(self.first) + keys

    def with_keys(self, groups: Groups, keys: Sequence[bytes]) -> list[int]:
        """Numbers of the row groups that can have one of these keys, or a key that begins with it."""
        found: set[int] = set()
        for group, key in zip(groups.tolist(), keys, strict=True):
            if group in self.parts:
                found.update(self.parts[group].with_keys(key))
        return sorted(found)


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
_filters: SizedCache[KeyFilter] = SizedCache(_FILTER_BYTES)
_row_groups: SizedCache[RowGroup] = SizedCache(_ROW_GROUP_BYTES)


def can_hold(file: DeltaFile | BaseFile, groups: Groups) -> npt.NDArray[np.bool_]:
    """Mask of the key groups of which the file can have rows."""
    if isinstance(file, BaseFile):
        within = (groups >= file.first_group) & (groups <= file.last_group)
        return within if file.step == 1 else within & ((groups - file.first_group) % file.step == 0)
    return np.equal(subtask_of(groups, file.parallelism), file.subtask)


def read_rows(
    store: SnapshotStore,
    table: StateTable,
    file: FileReference,
    groups: Groups | None,
    *,
    hashes: KeyHashes | None = None,
    keys: Sequence[bytes] | None = None,
    keep: bool = True,
) -> pa.Table:
    """Rows of some or all key groups in a file, with the columns that ``table`` declares, sorted as in the file.

    Only deltas and runs with deletes have ``_op``. ``hashes``: those of the operator's key that is sought in each of
    ``groups``; row groups of a run that have none of these keys may be left out. ``keys``: the encoded beginnings of
    these keys, if they order the rows of a key group, so that more row groups are left out. ``keep``: cache the row
    groups. Raises ``FileMissing``, ``FileCorrupt``.
    """
    of = f"state {table.id!r}"
    with _damage(store, file, of):
        footer, source = _footer_of(store, file, of)
        if groups is None:
            return conformed(_read(store, file, footer, source, range(len(footer.first)), of, keep), table)
        requested = np.unique(groups)
        if hashes is None or not footer.parts or len(groups) > len(footer.first):
            numbers = _with_groups(footer, requested)
        else:
            there = np.flatnonzero(_may_have(store, file, footer, groups, hashes, of))
            if keys is None:
                numbers = _with_groups(footer, np.unique(groups[there]))
            else:
                numbers = footer.with_keys(groups[there], [keys[position] for position in there.tolist()])
        return conformed(_of_groups(_read(store, file, footer, source, numbers, of, keep), requested), table)


def _may_have(
    store: SnapshotStore, file: FileReference, footer: _Footer, groups: Groups, keys: KeyHashes, of: str
) -> npt.NDArray[np.bool_]:
    """Mask of the operator's keys of which a run probably has rows. Reads the filters of their key groups; none of a
    small file, which is read whole."""
    found = np.ones(len(groups), bool)
    if file.bytes <= SMALL_BYTES:
        return found
    for group in np.unique(groups).tolist():
        here = np.flatnonzero(groups == group)
        part = footer.parts.get(group)
        found[here] = part is not None and _filter_of(store, file, part, of).may_contain(keys.some(here))
    return found


def _filter_of(store: SnapshotStore, file: FileReference, part: KeyGroupPart, of: str) -> KeyFilter:
    found = _filters.get((file.sha256, part.group))
    if found is None:
        (data,) = store.read_ranges(file, [(part.filter.offset, part.filter.size)], of)
        if part.filter.differs(data):
            raise FileCorrupt(
                f"{store.location(file.path)}, of {of}, is damaged: the filter of key group {part.group} does not have "
                "the checksum recorded for it. Restore the file from a copy, or read a snapshot that does not need it."
            )
        found = KeyFilter.from_bytes(data)
        _filters.put((file.sha256, part.group), found, len(data) + 200)
    return found


def column_names(store: SnapshotStore, table: StateTable, file: FileReference) -> frozenset[str]:
    """The columns that the file has. Raises ``FileMissing``, ``FileCorrupt``."""
    of = f"state {table.id!r}"
    with _damage(store, file, of):
        return frozenset(_opened(store, file, of).schema_arrow.names)


@dataclass(frozen=True)
class GroupSizes:
    """Rows and bytes of each key group, by its number."""

    rows: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, groups: int) -> GroupSizes:
        return cls(np.zeros(groups, np.int64), np.zeros(groups, np.int64))

    def plus(self, other: GroupSizes) -> GroupSizes:
        return GroupSizes(self.rows + other.rows, self.bytes + other.bytes)


def group_sizes(store: SnapshotStore, table: StateTable, file: FileReference, groups: int) -> GroupSizes:
    """Rows and bytes of the key groups 0 to ``groups`` - 1 in a file, including deletes and superseded rows.

    Reads the footer, which is cached, and of row groups with several key groups the column of key groups, in proportion
    to which their bytes are divided. A small file is read whole. Raises ``FileMissing``, ``FileCorrupt``."""
    of = f"state {table.id!r}"
    found = GroupSizes.empty(groups)
    with _damage(store, file, of):
        footer, source = _footer_of(store, file, of)
        for number, (first, last) in enumerate(zip(footer.first.tolist(), footer.last.tolist(), strict=True)):
            if first >= groups:
                raise KeyError(f"key group {first} of {groups}")
            row_group = footer.metadata.row_group(number)
            size = sum(row_group.column(place).total_compressed_size for place in range(row_group.num_columns))
            if first == last:
                found.rows[first] += row_group.num_rows
                found.bytes[first] += size
                continue
            source = source or _opened(store, file, of, footer.metadata)
            column = source.read_row_group(number, columns=["_kg"], use_threads=False).column(0).to_numpy()
            rows = np.bincount(column, minlength=groups)
            if len(rows) > groups:
                raise KeyError(f"key group {len(rows) - 1} of {groups}")
            found.rows[:] += rows
            # Rounded down at each border, so that the parts add up to the size.
            borders = np.concatenate([[0], np.cumsum(rows)]) * size // max(len(column), 1)
            found.bytes[:] += np.diff(borders)
    return found


def cached_row_groups(file: FileReference, group: int, key: bytes, hashes: KeyHashes) -> list[RowGroup] | None:
    """Row groups that can have keys of a key group with this beginning; ``None`` if some are not cached. ``hashes``:
    those of the operator's key."""
    footer = _footers.get(file.sha256)
    if footer is None:
        return None
    numbers: Sequence[int]
    if footer.parts:
        part, filter = footer.parts.get(group), _filters.get((file.sha256, group))
        excluded = filter is not None and not filter.may_contain(hashes).any()
        numbers = () if part is None or excluded else part.with_keys(key)
    else:
        numbers = np.flatnonzero((footer.first <= group) & (footer.last >= group)).tolist()
    found = [_row_groups.get((file.sha256, number)) for number in numbers]
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
    _filters.clear()
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


def _footer_of(store: SnapshotStore, file: FileReference, of: str) -> tuple[_Footer, pq.ParquetFile | None]:
    """The footer of a file, and the file if it had to be opened."""
    footer = _footers.get(file.sha256)
    if footer is not None:
        return footer, None
    source = _opened(store, file, of)
    about = described(source.metadata)
    check_format(f"State file {store.location(file.path)}", about)
    parts = {part.group: part for part in key_group_parts(about)}
    footer = _Footer(source.metadata, *bounds_of_row_groups(source.metadata), parts)
    _footers.put(file.sha256, footer, footer.size)
    return footer, source


def _read(
    store: SnapshotStore,
    file: FileReference,
    footer: _Footer,
    source: pq.ParquetFile | None,
    numbers: Sequence[int],
    of: str,
    keep: bool,
) -> pa.Table:
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
