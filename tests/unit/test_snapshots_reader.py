"""Reads of any snapshot from its files: correct rows, only the files needed, errors that name damaged files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt, FileMissing, NotFound
from epochal.snapshots import row_groups
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.compaction import compact
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference
from epochal.snapshots.merging import merged
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.state_world import (
    COUNTS,
    GROUPS,
    SEEN,
    SMALL_CELLS,
    TABLES,
    Change,
    changes_of,
    counted,
    seen,
    uncounted,
    unseen,
)
from tests.kit.manifests import plain_manifest

pytestmark = pytest.mark.usefixtures("empty_row_group_cache")


class Line:
    """Epochs of one branch with two subtasks."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self.references: list[ManifestReference] = []

    def add(self, bases: tuple[BaseFile, ...] = (), **changes: list[Change]) -> ManifestReference:
        key = EpochKey("main", len(self.references) + 1)
        manifest = plain_manifest(
            key.epoch,
            application="a",
            branch=key.branch,
            parent=self.references[-1] if self.references else None,
            parallelism=2,
            max_parallelism=GROUPS,
            tables=TABLES,
            deltas=tuple(self._deltas(key, changes)),
            bases=bases,
            created_at=datetime(2013, 1, 1, tzinfo=UTC),
        )
        self.references.append(self.store.write_manifest(manifest))
        return self.references[-1]

    def _deltas(self, key: EpochKey, changes: dict[str, list[Change]]) -> list[DeltaFile]:
        written = []
        for table, name in ((COUNTS, "counts"), (SEEN, "seen")):
            rows = changes_of(table, changes.get(name, []))
            for subtask in (0, 1):
                mine = rows.filter(pa.array(rows.column("_kg").to_numpy() % 2 == subtask))
                if mine.num_rows:
                    written.append(write_delta(self.store, sort_changes(table, mine), key, subtask, 2))
        return written

    def bases(self) -> tuple[BaseFile, ...]:
        chains = read_chains(self.store, self.references[-1], [table.id for table in TABLES])
        return tuple(
            base for table in TABLES for base in compact(self.store, table, chains[table.id], GROUPS, 4, SMALL_CELLS)
        )


@pytest.fixture(params=["path", "memory"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Line:
    """Epoch 1: 200 keys. Epoch 2: 100 changed. Epoch 3: 10 deleted, bases of 2 named. Epoch 4: 5 put again."""
    line = Line(SnapshotStore(str(tmp_path) if request.param == "path" else f"memory://{tmp_path}"))
    line.add(counts=counted(*range(200)), seen=seen(1, b"b", b"a") + seen(2, b"x"))
    line.add(counts=counted(*range(100), count=2), seen=unseen(1, b"a") + seen(1, b"c", times=5))
    line.add(line.bases(), counts=uncounted(*range(10)))
    line.add(counts=counted(*range(5), count=4), seen=seen(1, b"a", times=7))
    return line


def key(number: int) -> tuple[Any, ...]:
    row = uncounted(number)[0]
    return row["word"], row["day"]


def test_look_ups_read_every_epoch(line: Line) -> None:
    expected = {1: [1, 1, 1, None], 2: [2, 2, 1, None], 3: [None, None, 1, None], 4: [4, None, 1, None]}
    for reference in line.references:
        rows = SnapshotReader(line.store, reference).get("counts", [key(4), key(7), key(150), key(999)])
        assert [row and row["count"] for row in rows] == expected[reference.epoch]
    assert SnapshotReader(line.store, line.references[3]).get("counts", [key(4)]) == [{"count": 4, "last": "é4"}]
    assert SnapshotReader(line.store, line.references[3]).get("counts", []) == []


def test_sizes_of_key_groups_count_the_rows_of_all_files(line: Line) -> None:
    """Row groups with one and with several key groups: the rows of each equal those of the files themselves."""
    for reference in line.references:
        reader = SnapshotReader(line.store, reference)
        chain = reader.chain("counts")
        files = [run.file for run in chain.bases] + [delta.file for link in chain.links for delta in link.deltas]
        expected = np.zeros(GROUPS, np.int64)
        for file in files:
            rows = pq.read_table(pa.BufferReader(line.store.read_file(file, "counts")))
            expected += np.bincount(rows.column("_kg").to_numpy(), minlength=GROUPS)
        row_groups.forget()
        sizes = reader.sizes("counts", 100)
        assert sizes.groups.rows.tolist() == expected.tolist()
        assert (sizes.files, sizes.read) == (len(files), len(files))
        assert ((sizes.groups.bytes > 0) == (expected > 0)).all()
        assert 0 < sizes.groups.bytes.sum() <= sum(file.bytes for file in files)


def test_sizes_of_key_groups_read_a_bounded_number_of_files(line: Line) -> None:
    reader = SnapshotReader(line.store, line.references[3])
    most = len(reader.chain("counts").bases) + 1
    part = reader.sizes("counts", most)
    assert part.read == most < part.files
    assert part.groups.rows.sum() < reader.sizes("counts", 100).groups.rows.sum()
    with pytest.raises(NotFound, match="no state table 'other'"):
        reader.sizes("other", 100)


def test_map_entries_are_read_at_every_epoch(line: Line) -> None:
    expected = {1: [(b"a", 1), (b"b", 1)], 2: [(b"b", 1), (b"c", 5)], 3: [(b"b", 1), (b"c", 5)]}
    expected[4] = [(b"a", 7), (b"b", 1), (b"c", 5)]
    for reference in line.references:
        ones, none = SnapshotReader(line.store, reference).entries("counts.seen", [key(1), key(3)])
        assert [(row["place"], row["times"]) for row in ones] == expected[reference.epoch]
        assert list(ones[0]) == ["place", "number", "times"]
        assert none == []


def test_one_map_entry_is_read_by_its_full_key(line: Line) -> None:
    reader = SnapshotReader(line.store, line.references[1])
    assert reader.get("counts.seen", [(*key(1), b"c", -7), (*key(1), b"a", -7)]) == [{"times": 5}, None]


def test_whole_tables_are_read_at_every_epoch(line: Line) -> None:
    sizes = {1: 200, 2: 200, 3: 190, 4: 195}
    for reference in line.references:
        rows = SnapshotReader(line.store, reference).read("counts")
        assert rows.schema.names == ["word", "day", "count", "last"]
        assert rows.num_rows == sizes[reference.epoch]
        assert sum(rows.column("count").to_pylist()) == {1: 200, 2: 300, 3: 280, 4: 300}[reference.epoch]


def test_only_files_that_can_hold_the_key_are_opened(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = SnapshotStore.read_file

    def watched(store: SnapshotStore, file: FileReference, of: str) -> bytes:
        opened.append(file.path)
        return real(store, file, of)

    monkeypatch.setattr(SnapshotStore, "read_file", watched)
    reader = SnapshotReader(line.store, line.references[3])
    reader.get("counts", [key(4)])
    assert len(opened) == 1, "the newest delta has the key"
    opened.clear()
    reader.get("counts", [key(150)])
    assert len([path for path in opened if "/bases/" in path]) == 1
    assert len(opened) <= 3, "a delta of each epoch since the base, and one range of the base"


def test_only_row_groups_that_can_hold_the_key_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(SnapshotStore(str(tmp_path)))
    line.add(counts=counted(*range(60_000)))
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def watched(file: pq.ParquetFile, part: int, *arguments: Any, **named: Any) -> pa.Table:
        read.append(part)
        assert file.num_row_groups > 1
        return real(file, part, *arguments, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    assert SnapshotReader(line.store, line.references[0]).get("counts", [key(17)])[0] is not None
    assert len(read) in (1, 2)
    assert SnapshotReader(line.store, line.references[0]).get("counts", [key(17)])[0] is not None
    assert len(read) in (1, 2), "the row group is cached"


def test_files_with_and_without_nullable_key_columns_are_read_together(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    strict = pa.schema(
        [field.with_nullable(field.name not in COUNTS.key_schema.names) for field in COUNTS.delta_schema]
    )
    sorted_changes = sort_changes(COUNTS, changes_of(COUNTS, counted(*range(10))))
    old = write_delta(store, replace(sorted_changes, rows=sorted_changes.rows.cast(strict)), EpochKey("main", 1), 0, 1)
    new = write_delta(
        store, sort_changes(COUNTS, changes_of(COUNTS, counted(*range(5, 20), count=2))), EpochKey("main", 2), 0, 1
    )
    assert not pq.read_schema(store.location(old.file.path)).field("word").nullable
    links = tuple(Link(EpochKey("main", epoch), (delta,)) for epoch, delta in ((1, old), (2, new)))
    rows = merged(store, COUNTS, Chain(None, (), links), range(GROUPS))
    counts = {(row["word"], row["day"]): row["count"] for row in rows.to_pylist()}
    assert counts == {key(number): 1 if number < 5 else 2 for number in range(20)}
    assert len(counts) == 20


def test_repeated_keys_are_answered_once_each(line: Line) -> None:
    reader = SnapshotReader(line.store, line.references[3])
    rows = reader.get("counts", [key(4), key(7), key(4), key(150)])
    assert [row and row["count"] for row in rows] == [4, None, 4, 1]
    first, second, third = reader.entries("counts.seen", [key(1), key(3), key(1)])
    assert first == third != []
    assert second == []


def test_errors_name_the_damaged_file(line: Line) -> None:
    (file,) = [delta.file for delta in line.store.read_manifest(line.references[3]).deltas if delta.table == "counts"][
        :1
    ]
    data = line.store.read(file.path)
    keys = [key(number) for number in range(5)]
    damaged = bytearray(data)
    damaged[4:60] = bytes(byte ^ 0x55 for byte in data[4:60])
    line.store.write(file.path, bytes(damaged))
    row_groups.forget()
    with pytest.raises(FileCorrupt, match=file.path):
        SnapshotReader(line.store, line.references[3]).get("counts", keys)
    with pytest.raises(FileCorrupt, match=file.path):
        SnapshotReader(line.store, line.references[3]).read("counts")
    line.store.delete(file.path)
    with pytest.raises(FileMissing, match=file.path):
        SnapshotReader(line.store, line.references[3]).get("counts", keys)


def test_the_error_for_an_unknown_table_lists_the_tables(line: Line) -> None:
    with pytest.raises(NotFound, match=r"main/1 has no state table 'count'; it has: counts, counts\.seen"):
        SnapshotReader(line.store, line.references[0]).read("count")


def test_duckdb_reads_a_snapshots_files(tmp_path: Path) -> None:
    line = Line(SnapshotStore(str(tmp_path)))
    line.add(counts=counted(*range(200)))
    files = [line.store.location(base.file.path) for base in line.bases() if base.table == "counts"]
    query = f"select count(*), sum(count), min(day) from read_parquet({files})"
    assert duckdb.connect().execute(query).fetchall() == [(200, 200, date(2013, 1, 1))]


def test_bases_cover_their_key_groups_and_are_sorted(tmp_path: Path) -> None:
    line = Line(SnapshotStore(str(tmp_path)))
    line.add(counts=counted(*range(500)))
    line.add(counts=uncounted(*range(250)))
    bases = [base for base in line.bases() if base.table == "counts"]
    assert [base.groups for base in bases] == [range(first, GROUPS, 4) for first in range(4)]
    assert sum(base.file.rows for base in bases) == 250
    for base in bases:
        rows = pq.read_table(line.store.location(base.file.path))
        groups = rows.column("_kg").to_numpy()
        assert rows.schema.names == ["_kg", "word", "day", "count", "last"]
        assert set(groups.tolist()) <= set(base.groups)
        assert (np.diff(groups) >= 0).all()
    empty = [base for base in line.bases() if base.table == "counts.seen"]
    assert [(base.groups, base.file.rows) for base in empty] == [(range(GROUPS), 0)]
