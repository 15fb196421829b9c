"""Rows of a state table at a snapshot in the order of their addresses, a page at a time.

Files are sorted by key group first, so that a scan must sort the keys. It sorts only as far as a reader has advanced:
it selects, deduplicates and sorts the smallest keys of the files, a *section*, which is cached for the next pages.
Later sections are larger, so that a whole scan reads the files a few times, and the first page does not wait for
sorting all keys. Memory is bounded by processing ranges of key groups one after the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.snapshots.immutable_cache import SizedCache
from epochal.snapshots.reader import SnapshotReader, TableSearch
from epochal.snapshots.row_groups import Groups
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable

ROWS_AT_ONCE = 2_000_000
"""Maximum number of rows of files that are processed together."""
FIRST_ROWS, GROWTH = 4_096, 8
"""Approximate number of rows of files for a first section, and the growth factor of the next ones."""
LEAST_RUN = 1_024
"""Minimum number of rows of a run; in shorter ones it is cheaper to read every row."""
LEAST_SHARE = 16
"""Minimum number of rows of each run to read. With fewer, differences in density matter more."""
SECTIONS = 4
"""Maximum number of cached sections of a table, for this number of concurrent scans. With more scans, all keys are
sorted if the result can be cached."""
_KEPT_BYTES = 512 << 20
_OF_A_TABLE_BYTES = 96 << 20
"""Less than the maximum size of a cache entry."""


@dataclass(frozen=True)
class ScannedRows:
    """``keys``: the encoded addresses, in order. ``rows``: full key and value columns. ``more``: this is not all."""

    keys: list[bytes]
    rows: pa.Table
    more: bool


@dataclass(frozen=True)
class _Section:
    """All rows with ``first`` <= key < ``end``, in order. ``cut``: the section ends before the requested end.
    ``made_of``: maximum number of rows of files that were selected for it."""

    first: bytes
    end: bytes | None
    cut: bool
    keys: pa.BinaryArray
    rows: pa.Table
    made_of: int

    def page(self, first: bytes, end: bytes | None, limit: int) -> ScannedRows | None:
        """Rows from ``first`` to ``end``; ``None`` if the section does not have all of them."""
        if first < self.first:
            return None
        start = bisect_left(self, first)
        keys: list[bytes] = self.keys[start : start + limit + 1].to_pylist()
        here = keys if end is None else keys[: bisect_left(keys, end)]
        whole = self.end is None or (end is not None and end <= self.end)
        if len(here) <= limit and not whole:
            return None
        return ScannedRows(here[:limit], self.rows.slice(start, min(limit, len(here))), len(here) > limit)

    def leads_to(self, first: bytes) -> bool:
        """True if a scan at ``first`` has read this section to its end."""
        return self.cut and self.first < first and self.end is not None and first <= self.end

    @property
    def growth(self) -> int:
        """Growth factor of the next section."""
        return max(1, min(GROWTH, _OF_A_TABLE_BYTES // SECTIONS // self.size))

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(1000 + self.keys.nbytes + self.rows.nbytes)

    def __getitem__(self, place: int) -> bytes:
        key: bytes = self.keys[place].as_py()
        return key

    def __len__(self) -> int:
        return len(self.keys)


_kept: SizedCache[tuple[_Section, ...]] = SizedCache(_KEPT_BYTES)


def scan(
    reader: SnapshotReader, id: str, prefix: bytes, after: bytes | None, limit: int, groups: Groups | None = None
) -> ScannedRows:
    """At most ``limit`` rows whose encoded key begins with ``prefix`` and comes after ``after``.

    ``groups``: key groups of these keys, if known. Raises ``FileMissing``,
    ``FileCorrupt``, ``NotFound``.
    """
    first, end = prefix if after is None else max(prefix, after + b"\0"), _end_of(prefix)
    place = (reader.reference.sha256, id)
    kept = _kept.get(place) or ()
    for section in kept:
        found = section.page(first, end, limit)
        if found is not None:
            return found
    search = reader.search(id)
    before = next((section for section in kept if section.leads_to(first)), None)
    others = tuple(section for section in kept if section is not before)
    most = sum(file.file.rows for file in search.files)
    making = _Making(reader.table(id), search, limit + 1, _parts(reader, most, groups))
    if before is not None:
        section = making.section(first, end, before.made_of * before.growth)
    elif len(kept) == SECTIONS and groups is None and _size_of_all(kept, most) < _OF_A_TABLE_BYTES:
        section, others = making.section(b"", None, most), ()
    else:
        section, others = making.section(first, end, FIRST_ROWS), others[1 - SECTIONS :]
    _kept.put(place, (*others, section), sum(each.size for each in (*others, section)))
    found = section.page(first, end, limit)
    assert found is not None  # the section has more than the page, or all rows
    return found


def forget() -> None:
    """Clear the cache, to measure first pages."""
    _kept.clear()


def _parts(reader: SnapshotReader, most: int, groups: Groups | None) -> Sequence[Groups | None]:
    """Key groups that are processed together."""
    if groups is not None:
        return [groups]
    if most <= ROWS_AT_ONCE:
        return [None]
    return np.array_split(np.arange(reader.manifest.max_parallelism, dtype=np.int32), -(-most // ROWS_AT_ONCE))


def _size_of_all(sections: Sequence[_Section], rows: int) -> int:
    """Approximate size of all keys, sorted."""
    return rows * sum(section.size for section in sections) // max(1, sum(len(section) for section in sections))


@dataclass(frozen=True)
class _Making:
    """Builder of sections. ``least``: minimum number of rows of a section, unless the table has fewer."""

    table: StateTable
    search: TableSearch
    least: int
    parts: Sequence[Groups | None]

    def section(self, first: bytes, end: bytes | None, rows: int) -> _Section:
        """Section from ``first``, at most to ``end``. It merges the smallest keys of each part up to the point that all
        parts cover."""
        sections = [self._of_part(groups, first, end, rows) for groups in self.parts]
        if len(sections) == 1:
            return sections[0]
        keys, all_rows = _sorted(
            pa.concat_arrays([section.keys for section in sections]),
            pa.concat_tables([section.rows for section in sections]),
        )
        nearest = min((section.end for section in sections if section.end is not None), default=None)
        count = len(keys) if nearest is None else len(pc.indices_nonzero(_within(keys, b"", nearest)))
        cut = any(section.cut for section in sections)
        return _Section(first, nearest, cut, keys[:count], all_rows.slice(0, count), rows)

    def _of_part(self, groups: Groups | None, first: bytes, end: bytes | None, rows: int) -> _Section:
        codec = KeyCodec(self.table.address_schema)
        in_key_order = self.table.time is None
        files = self.search.of_files(groups, lambda each: _File.of(each, codec, in_key_order, first, end))
        while True:
            nearest = _nearest(files, rows) if files else None
            there = self.search.there([file.before(nearest) for file in files]).select(self._columns)
            if nearest is None or there.num_rows >= self.least:
                ordered = _sorted(codec.encode_array(there), there)
                return _Section(first, end if nearest is None else nearest, nearest is not None, *ordered, rows)
            rows *= GROWTH

    @property
    def _columns(self) -> list[str]:
        return [*self.table.key_schema.names, *self.table.value_schema.names]


@dataclass(frozen=True)
class _Run:
    """Rows of one key group, in the order of their keys: of ``rows`` those from ``begin`` on, before ``stop``."""

    rows: pa.Table
    codec: KeyCodec
    begin: int
    stop: int

    def within(self, first: bytes, end: bytes | None) -> _Run:
        return replace(self, begin=self.place(first), stop=self.stop if end is None else self.place(end))

    def before(self, end: bytes | None) -> pa.Table:
        return self.rows.slice(self.begin, (self.stop if end is None else self.place(end)) - self.begin)

    def place(self, key: bytes) -> int:
        """Position of the first row that is not before ``key``."""
        return bisect_left(range(self.stop), key, self.begin, key=self.key)

    def key(self, place: int) -> bytes:
        return self.codec.encode_one([self.rows.column(name)[place].as_py() for name in self.codec.schema.names])


@dataclass(frozen=True)
class _File:
    """Rows of a file in a range of keys: long ``runs``, of which a few rows are read, and ``others`` with their
    keys."""

    runs: Sequence[_Run]
    others: pa.Table
    keys: pa.BinaryArray

    @classmethod
    def of(cls, rows: pa.Table, codec: KeyCodec, in_key_order: bool, first: bytes, end: bytes | None) -> _File:
        """``in_key_order``: rows of each key group are in key order."""
        bounds = _bounds(rows) if in_key_order else np.zeros((0, 2), np.int64)
        runs = [_Run(rows, codec, begin, stop).within(first, end) for begin, stop in bounds.tolist()]
        rest = np.ones(rows.num_rows, bool)
        for begin, stop in bounds.tolist():
            rest[begin:stop] = False
        others = rows if not len(bounds) else rows.filter(pa.array(rest))
        keys = codec.encode_array(others)
        within = pc.indices_nonzero(_within(keys, first, end))
        if len(within) < len(keys):
            others, keys = others.take(within), keys.take(within)
        return cls([run for run in runs if run.begin < run.stop], others, keys)

    def before(self, end: bytes | None) -> pa.Table:
        """Rows with keys less than ``end``; ``None``: all."""
        others = self.others if end is None else self.others.filter(_within(self.keys, b"", end))
        return pa.concat_tables([others, *(run.before(end) for run in self.runs)])


def _bounds(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Begin and end of long runs."""
    groups = rows.column("_kg").to_numpy()
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    runs = np.stack([bounds[:-1], bounds[1:]], axis=1)
    long: npt.NDArray[np.int64] = runs[runs[:, 1] - runs[:, 0] >= LEAST_RUN]
    return long


def _nearest(files: Sequence[_File], count: int) -> bytes | None:
    """A key greater than about ``count`` keys; ``None`` if there are not more keys."""
    runs = [run for file in files for run in file.runs]
    share = 2 * count // max(1, len(runs)) + LEAST_SHARE
    bounds = [run.key(run.begin + share) for run in runs if run.stop - run.begin > share]
    most: pa.BinaryArray = max((file.keys for file in files), key=len)
    mine = max(1, count * len(most) // max(1, sum(len(file.keys) for file in files)))
    if len(most) > mine:
        bounds.append(pc.max(most.take(pc.bottom_k_unstable(most, mine))).as_py())
    return min(bounds, default=None)


def _within(keys: pa.BinaryArray, first: bytes, end: bytes | None) -> pa.BooleanArray:
    """Mask of ``first`` <= key < ``end``."""
    after = pc.greater_equal(keys, pa.scalar(first, pa.binary()))
    return after if end is None else pc.and_(after, pc.less(keys, pa.scalar(end, pa.binary())))


def _sorted(keys: pa.BinaryArray, rows: pa.Table) -> tuple[pa.BinaryArray, pa.Table]:
    order = pc.sort_indices(keys)
    return keys.take(order), rows.take(order).combine_chunks()


def _end_of(prefix: bytes) -> bytes | None:
    """Smallest byte string greater than all that begin with ``prefix``; ``None`` if there is none."""
    beginning = prefix.rstrip(b"\xff")
    return beginning[:-1] + bytes([beginning[-1] + 1]) if beginning else None
