"""Rows of a state table at a snapshot in the order of their addresses, a page at a time.

Files are sorted by key group first, so the order of keys has to be made, and it is made no further than somebody has
come: of all that the files have only the least keys are chosen, told apart and sorted, a *section*, which is kept for
the next pages. Who goes on gets larger ones, so that a whole scan looks through the files a few times, and a first page
does not wait for the order of all keys. What is looked through at once is bounded, too: a range of key groups after the
other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.snapshots.reader import SnapshotReader, TableSearch
from epochal.snapshots.row_groups import Groups, SizedCache
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable

ROWS_AT_ONCE = 2_000_000
"""Rows of files that are looked through at once."""
FIRST_ROWS, GROWTH = 4_096, 8
"""Rows of files that a first section is made of, about, and how many times as many the next one."""
LEAST_RUN = 1_024
"""Rows: in a shorter run it costs less to look at every row."""
LEAST_SHARE = 16
"""Rows of each run that are looked at: the fewer, the more does it matter that runs are not equally dense."""
SECTIONS = 4
"""Of one table that are kept: so many scans may be read at once without waiting for each other. Where more are asked
for, the order of all keys is made, if it can be kept."""
_KEPT_BYTES = 512 << 20
_OF_A_TABLE_BYTES = 96 << 20
"""Less than what may be kept of one."""


@dataclass(frozen=True)
class ScannedRows:
    """``keys``: the encoded addresses, in order. ``rows``: full key and value columns. ``more``: this is not all."""

    keys: list[bytes]
    rows: pa.Table
    more: bool


@dataclass(frozen=True)
class _Section:
    """All rows whose key is not less than ``first`` and less than ``end``, in order. ``cut``: more was asked for, from
    ``end`` on. ``made_of``: so many rows of files were chosen for it, at most."""

    first: bytes
    end: bytes | None
    cut: bool
    keys: pa.BinaryArray
    rows: pa.Table
    made_of: int

    def page(self, first: bytes, end: bytes | None, limit: int) -> ScannedRows | None:
        """Rows from a key on, before ``end``; ``None`` where they are not all here."""
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
        """Whether a scan that has come so far has read this section, to its end."""
        return self.cut and self.first < first and self.end is not None and first <= self.end

    @property
    def growth(self) -> int:
        """How many times as large the next one is to be."""
        return max(1, min(GROWTH, _OF_A_TABLE_BYTES // SECTIONS // self.size))

    @property
    def size(self) -> int:
        """In bytes."""
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

    ``groups``: the key groups that these keys can be in, where they are known. Raises ``FileMissing``,
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
    assert found is not None  # it has more than the page, or all that there is
    return found


def forget() -> None:
    """Drop all that is kept: for measuring what a first page takes."""
    _kept.clear()


def _parts(reader: SnapshotReader, most: int, groups: Groups | None) -> Sequence[Groups | None]:
    """Key groups that are looked through together."""
    if groups is not None:
        return [groups]
    if most <= ROWS_AT_ONCE:
        return [None]
    return np.array_split(np.arange(reader.manifest.max_parallelism, dtype=np.int32), -(-most // ROWS_AT_ONCE))


def _size_of_all(sections: Sequence[_Section], rows: int) -> int:
    """About what the order of all keys would take."""
    return rows * sum(section.size for section in sections) // max(1, sum(len(section) for section in sections))


@dataclass(frozen=True)
class _Making:
    """Of sections. ``least``: each has so many rows, unless there are fewer."""

    table: StateTable
    search: TableSearch
    least: int
    parts: Sequence[Groups | None]

    def section(self, first: bytes, end: bytes | None, rows: int) -> _Section:
        """From ``first`` on, up to ``end`` or less. Of each part the least keys: as far as all of these go, they are
        those of the whole table."""
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
        """Of the first row that is not before ``key``."""
        return bisect_left(range(self.stop), key, self.begin, key=self.key)

    def key(self, place: int) -> bytes:
        return self.codec.encode_one([self.rows.column(name)[place].as_py() for name in self.codec.schema.names])


@dataclass(frozen=True)
class _File:
    """What a file has in a range of keys: long ``runs``, of which a few rows are looked at, and ``others`` with the
    keys of each."""

    runs: Sequence[_Run]
    others: pa.Table
    keys: pa.BinaryArray

    @classmethod
    def of(cls, rows: pa.Table, codec: KeyCodec, in_key_order: bool, first: bytes, end: bytes | None) -> _File:
        """``in_key_order``: rows of one key group are."""
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
        """Rows whose key is less than ``end``; ``None``: all."""
        others = self.others if end is None else self.others.filter(_within(self.keys, b"", end))
        return pa.concat_tables([others, *(run.before(end) for run in self.runs)])


def _bounds(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Where long runs begin, and where they stop."""
    groups = rows.column("_kg").to_numpy()
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    runs = np.stack([bounds[:-1], bounds[1:]], axis=1)
    long: npt.NDArray[np.int64] = runs[runs[:, 1] - runs[:, 0] >= LEAST_RUN]
    return long


def _nearest(files: Sequence[_File], count: int) -> bytes | None:
    """A key that about so many are less than; ``None`` where there are not more."""
    runs = [run for file in files for run in file.runs]
    share = 2 * count // max(1, len(runs)) + LEAST_SHARE
    bounds = [run.key(run.begin + share) for run in runs if run.stop - run.begin > share]
    most: pa.BinaryArray = max((file.keys for file in files), key=len)
    mine = max(1, count * len(most) // max(1, sum(len(file.keys) for file in files)))
    if len(most) > mine:
        bounds.append(pc.max(most.take(pc.bottom_k_unstable(most, mine))).as_py())
    return min(bounds, default=None)


def _within(keys: pa.BinaryArray, first: bytes, end: bytes | None) -> pa.BooleanArray:
    """Which are not less than ``first``, and less than ``end``."""
    after = pc.greater_equal(keys, pa.scalar(first, pa.binary()))
    return after if end is None else pc.and_(after, pc.less(keys, pa.scalar(end, pa.binary())))


def _sorted(keys: pa.BinaryArray, rows: pa.Table) -> tuple[pa.BinaryArray, pa.Table]:
    order = pc.sort_indices(keys)
    return keys.take(order), rows.take(order).combine_chunks()


def _end_of(prefix: bytes) -> bytes | None:
    """The least text that comes after all that begin with ``prefix``; ``None`` where nothing does."""
    beginning = prefix.rstrip(b"\xff")
    return beginning[:-1] + bytes([beginning[-1] + 1]) if beginning else None
