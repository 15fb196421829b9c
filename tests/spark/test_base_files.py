"""Bases by key group: a subtask reads and verifies only the key groups that it owns. Other readers of bases."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from epochal.backends import heap, lmdb, recent
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.errors import FileCorrupt, SnapshotError
from epochal.snapshots import base_files
from epochal.snapshots.base_files import (
    LEAST_CHUNK_BYTES,
    base_schema,
    damaged_groups,
    encoded_base,
    read_base,
    read_groups,
)
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.compaction import compact, write_base
from epochal.snapshots.delta import ROW_GROUP, read_delta, rows_of_groups, sort_changes, write_delta
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.merge_policy import CellSizes
from epochal.snapshots.merging import merged
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable
from tests.kit import ranged_files

Backend = type[HeapBackend | LmdbBackend]
GROUPS, RANGES, ROWS = 128, 4, 100_000
AT = EpochKey("main", 1)
TOTALS = StateTable(
    id="totals",
    operator="totals",
    kind=StateKind.AGGREGATE,
    key=(Column(name="key", type="bigint"),),
    value=(Column(name="note", type="string"), Column(name="total", type="double")),
)


def state(rows: int = ROWS, groups: int = GROUPS) -> pa.Table:
    """Rows of a base, in order. Notes are hardly compressible, so that a row has a realistic size."""
    chance = np.random.default_rng(7)
    keys = pa.table({"key": np.arange(rows)}, schema=TOTALS.key_schema)
    notes = pa.array(chance.integers(1 << 60, 1 << 62, rows)).cast(pa.string())
    columns = {
        "_kg": key_groups(keys, TOTALS.key_schema, groups),
        "key": keys["key"],
        "note": notes,
        "total": chance.random(rows),
    }
    every = pa.table(columns, schema=base_schema(TOTALS))
    return every.sort_by([("_kg", "ascending"), ("key", "ascending")])


def bases(store: SnapshotStore, rows: pa.Table) -> tuple[BaseFile, ...]:
    width = GROUPS // RANGES
    return tuple(
        write_base(store, TOTALS, AT, range(first, first + width), _between(rows, first, first + width - 1))
        for first in range(0, GROUPS, width)
    )


def _between(rows: pa.Table, first: int, last: int) -> pa.Table:
    begin, end = np.searchsorted(rows["_kg"].to_numpy(), [first, last + 1])
    return rows.slice(begin, end - begin)


@dataclass(frozen=True)
class Restored:
    rows: int
    total: float


def restore(store: SnapshotStore, chain: Chain, backend: Backend, parallelism: int, folder: Path) -> Restored:
    """The rows that all subtasks read, each in a new worker on a new machine."""
    rows, total = 0, 0.0
    for subtask in range(parallelism):
        for module in (heap, lmdb, recent):
            module.forget()
        scope = scope_of(chain, subtask, parallelism)
        transaction = backend("totals", store, str(folder / f"{uuid4().hex}")).start(scope)
        keys = pa.table({"key": np.arange(ROWS)}, schema=TOTALS.key_schema)
        mine = keys.filter(pa.array(key_groups(keys, TOTALS.key_schema, GROUPS) % parallelism == subtask))
        found, values = TableAccess(TOTALS, transaction.view("totals"), GROUPS).get(mine)
        rows, total = rows + int(found.sum()), total + (pa.compute.sum(values["total"]).as_py() or 0.0)
        transaction.discard()
    return Restored(rows, total)


def scope_of(chain: Chain, subtask: int, parallelism: int) -> StateTaskScope:
    epoch = EpochScope("application", EpochKey("main", 9), 1, chain.at)
    return StateTaskScope(epoch, "totals", subtask, parallelism, GROUPS, (TOTALS,), {"totals": chain})


@pytest.fixture(autouse=True)
def by_key_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases have an index even if key groups are small."""
    monkeypatch.setattr(base_files, "LEAST_CHUNK_BYTES", 0)


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    ranged_files.REQUESTS.clear()
    yield
    for module in (heap, lmdb, recent):
        module.forget()


@pytest.fixture(params=["ranged", "apart"])
def counted(request: pytest.FixtureRequest) -> SnapshotStore:
    return SnapshotStore(f"{request.param}:///{uuid4().hex}")


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
@pytest.mark.parametrize("parallelism", [8, 5, 3])
@pytest.mark.alternating(3)
@pytest.mark.claim(
    "docs/operations/scale.md: several subtasks read the runs of one cell: of large runs, each reads its own key groups"
)
def test_all_subtasks_together_read_the_state_once(
    counted: SnapshotStore, tmp_path: Path, backend: Backend, parallelism: int
) -> None:
    rows = state()
    chain = Chain(AT, bases(counted, rows), ())
    restored = restore(counted, chain, backend, parallelism, tmp_path)
    assert (restored.rows, round(restored.total, 3)) == (ROWS, round(pa.compute.sum(rows["total"]).as_py(), 3))
    size = sum(base.file.bytes for base in chain.bases)
    without_filters = size - size // 10
    assert without_filters <= sum(ranged_files.bytes_read().values()) <= 1.05 * size


@pytest.mark.parametrize("parallelism", [1, 8])
@pytest.mark.claim(
    "docs/operations/scale.md: small ones it reads as a whole.",
    "docs/operations/scale.md: Small means less than 64 KiB in memory for each column and key group.",
)
def test_every_subtask_reads_small_bases_completely(
    counted: SnapshotStore, tmp_path: Path, parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_files, "LEAST_CHUNK_BYTES", LEAST_CHUNK_BYTES)
    assert LEAST_CHUNK_BYTES * GROUPS == 8 << 20
    chain = Chain(AT, bases(counted, state(2000)), ())
    assert restore(counted, chain, HeapBackend, parallelism, tmp_path).rows == 2000
    size = sum(base.file.bytes for base in chain.bases)
    assert sum(ranged_files.bytes_read().values()) == parallelism * size


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
@pytest.mark.claim(
    "docs/operations/scale.md: All subtasks together read the runs of a state table once at the parallelism with which "
    "they were written."
)
def test_subtasks_read_only_the_runs_of_their_cells(
    counted: SnapshotStore, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_files, "LEAST_CHUNK_BYTES", LEAST_CHUNK_BYTES)
    chain = Chain(None, (), ())
    sizes = CellSizes(whole=0, least=1, depth=lambda sizes: 0)
    for number, count in enumerate((4000, 400), 1):
        at, rows = EpochKey("main", number), state(count)
        changes = rows.append_column("_op", pa.repeat("put", rows.num_rows))
        delta = write_delta(counted, sort_changes(TOTALS, changes), at, 0, 1)
        chain = Chain(chain.base_at, chain.bases, (Link(at, (delta,)),))
        chain = Chain(at, compact(counted, TOTALS, chain, GROUPS, 4, sizes), ())
    assert {(base.step, base.age, base.index) for base in chain.bases} == {(4, 0, None), (4, 1, None)}
    ranged_files.REQUESTS.clear()
    assert restore(counted, chain, backend, 4, tmp_path).rows == 4000
    assert sum(ranged_files.bytes_read().values()) == sum(base.file.bytes for base in chain.bases)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not report what a process has read")
def test_local_bases_are_read_once_by_all_subtasks(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"))
    chain = Chain(AT, bases(store, state()), ())
    restore(store, Chain(AT, chain.bases[:1], ()), HeapBackend, 2, tmp_path)  # imports modules before the measurement
    before = _read_by_this_process()
    assert restore(store, chain, HeapBackend, 8, tmp_path).rows == ROWS
    assert _read_by_this_process() - before <= 1.05 * sum(base.file.bytes for base in chain.bases)


def _read_by_this_process() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).partition(":")[2])


@pytest.mark.parametrize("ranges", [8, 3])
def test_subtasks_with_other_ranges_read_the_state_once(counted: SnapshotStore, ranges: int) -> None:
    """As in compaction of grown state, and in re-keying."""
    rows = state()
    chain = Chain(AT, bases(counted, rows), ())
    bounds = [index * GROUPS // ranges for index in range(ranges + 1)]
    parts = [merged(counted, TOTALS, chain, range(bounds[at], bounds[at + 1])) for at in range(ranges)]
    assert pa.concat_tables(parts).equals(rows)
    size = sum(base.file.bytes for base in chain.bases)
    assert sum(ranged_files.bytes_read().values()) <= 1.05 * size
    assert len(ranged_files.REQUESTS) <= 2 * (ranges + RANGES)  # adjacent key groups are one request


def test_only_missing_key_groups_are_read(counted: SnapshotStore, tmp_path: Path) -> None:
    """After a rescale on one machine, state cached at a smaller parallelism is not restored again."""
    chain = Chain(AT, bases(counted, state()), ())
    cache = str(tmp_path / "cache")
    LmdbBackend("totals", counted, cache).start(scope_of(chain, 0, 4)).discard()
    ranged_files.REQUESTS.clear()
    LmdbBackend("totals", counted, cache).start(scope_of(chain, 0, 2)).discard()
    size = sum(base.file.bytes for base in chain.bases)
    assert sum(ranged_files.bytes_read().values()) <= 1.05 * size / 4
    lmdb.forget()
    LmdbBackend("totals", counted, cache).start(scope_of(chain, 4, 8)).discard()
    assert sum(ranged_files.bytes_read().values()) <= 1.05 * size / 4


@pytest.mark.claim(
    "docs/operations/scale.md: All subtasks together read the deltas after the bases once at the parallelism that "
    "wrote them; after "
    "a change of the parallelism a delta is read by each subtask that owns some of its key groups."
)
def test_deltas_are_read_once_at_the_same_parallelism(counted: SnapshotStore, tmp_path: Path) -> None:
    rows = state(2000)
    changes = rows.append_column("_op", pa.repeat("put", rows.num_rows))
    deltas = tuple(
        write_delta(
            counted, sort_changes(TOTALS, changes.filter(rows["_kg"].to_numpy() % 4 == subtask)), AT, subtask, 4
        )
        for subtask in range(4)
    )
    chain = Chain(None, (), (Link(AT, deltas),))
    for parallelism, times in ((4, 1), (2, 1), (3, 3), (8, 2)):
        ranged_files.REQUESTS.clear()
        assert restore(counted, chain, HeapBackend, parallelism, tmp_path).rows == 2000
        assert len(ranged_files.REQUESTS) == times * len(deltas)


def test_range_of_a_delta_is_decoded_and_the_whole_file_verified(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    rows = state()
    changes = rows.add_column(1, "_op", pa.repeat(pa.scalar("put"), rows.num_rows))
    delta = write_delta(store, sort_changes(TOTALS, changes), AT, 0, 1)
    every = read_delta(store, TOTALS, delta)
    for first, last in ((0, 31), (32, 63), (100, 127), (0, 127)):
        some, groups = read_delta(store, TOTALS, delta, (first, last)), range(first, last + 1)
        assert rows_of_groups(some, groups).equals(rows_of_groups(every, groups))
        assert some.num_rows <= rows_of_groups(every, groups).num_rows + 2 * ROW_GROUP
    assert read_delta(store, TOTALS, delta, (GROUPS, GROUPS)).equals(every.slice(0, 0))
    file = tmp_path / delta.file.path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(FileCorrupt):
        read_delta(store, TOTALS, delta, (0, 0))


def test_bases_are_plain_parquet_with_checksums(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    rows = state()
    for base in bases(store, rows):
        path = store.location(base.file.path)
        expected = _between(rows, base.first_group, base.last_group)
        assert pq.read_table(path).cast(expected.schema).equals(expected)
        metadata = pq.read_metadata(path)
        statistics = [metadata.row_group(number).column(0).statistics for number in range(metadata.num_row_groups)]
        assert [each.min for each in statistics] == [each.max for each in statistics]
        content = Path(path).read_bytes()
        begin = 4
        key_groups = json.loads(metadata.metadata[b"epochal"])["key_groups"]
        for each in (*key_groups, *(each["filter"] for each in key_groups)):
            assert zlib.crc32(content[begin : begin + each["bytes"]]) == each["crc32"]
            begin += each["bytes"]
        assert base.index is not None and begin == base.index.offset


def test_spark_and_duckdb_read_bases(spark: SparkSession, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    rows = state()
    chosen = rows.slice(ROWS // 3, 1)
    paths = [store.location(base.file.path) for base in bases(store, rows)]
    frame = spark.read.parquet(*paths)
    assert frame.count() == ROWS
    (found,) = frame.where(f"key = {chosen['key'][0]}").collect()
    assert [found.asDict()] == chosen.to_pylist()
    counted = duckdb.sql(f"SELECT count(*), sum(key) FROM read_parquet({paths})").fetchall()
    assert counted == [(ROWS, ROWS * (ROWS - 1) // 2)]


def test_key_groups_without_rows_have_no_row_group_and_large_ones_several(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    rows = state(40_000, groups=2)
    base = write_base(store, TOTALS, AT, range(8), rows)
    assert pq.read_metadata(store.location(base.file.path)).num_row_groups == 4
    for groups in ([0], [1], [0, 1], [1, 5], [5], [9]):
        found = read_groups(store, TOTALS, base, np.array(groups, np.int32))
        assert found.equals(rows.filter(pa.array(np.isin(rows["_kg"].to_numpy(), groups))))


@pytest.mark.parametrize("count", [0, 1, 500, 10_000, 40_000, 60_000])
def test_a_base_of_small_key_groups_is_read_completely(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    monkeypatch.setattr(base_files, "LEAST_CHUNK_BYTES", 4 << 10)
    rows = _between(state(count), 0, 31)
    store = SnapshotStore(str(tmp_path))
    base = write_base(store, TOTALS, AT, range(32), rows)
    assert (base.index is None) == (count < 60_000)
    assert read_base(store, TOTALS, base).equals(rows)
    for subtask in range(3):
        groups = np.arange(subtask, GROUPS, 3, dtype=np.int32)
        expected = rows.filter(pa.array(np.isin(rows["_kg"].to_numpy(), groups)))
        assert read_groups(store, TOTALS, base, groups).equals(expected)


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
def test_damaged_key_group_is_named_by_its_reader(tmp_path: Path, backend: Backend) -> None:
    store = SnapshotStore(str(tmp_path))
    chain = Chain(AT, bases(store, state()), ())
    base = chain.bases[1]
    place = damage(store, base, lambda content: len(content) // 2)
    (group,) = damaged_groups(Path(store.location(base.file.path)).read_bytes(), base) or ()
    assert base.first_group < group < base.last_group and place > 0
    for subtask in range(8):
        engine = backend("totals", store, str(tmp_path / f"cache-{subtask}"))
        if group % 8 != subtask:
            engine.start(scope_of(chain, subtask, 8)).discard()
            continue
        with pytest.raises(FileCorrupt) as raised:
            engine.start(scope_of(chain, subtask, 8))
        for part in (base.file.path, "state 'totals' at main/1", f"key group {group} does not have"):
            assert part in raised.value.message


def test_damaged_index_and_truncated_file_are_named(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    base = bases(store, state())[0]
    whole = store.read(base.file.path)
    groups = np.array([1, 9], np.int32)
    damage(store, base, lambda _: base.index.offset + 1 if base.index else 0)
    with pytest.raises(FileCorrupt, match="its index does not have the checksum"):
        read_groups(store, TOTALS, base, groups)
    store.write(base.file.path, whole[: base.index.offset] if base.index else b"")
    with pytest.raises(FileCorrupt, match=f"does not have the {base.file.bytes} bytes"):
        read_groups(store, TOTALS, base, groups)
    store.delete(base.file.path)
    with pytest.raises(SnapshotError, match="is missing"):
        read_groups(store, TOTALS, base, groups)


def damage(store: SnapshotStore, base: BaseFile, where: Callable[[bytes], int]) -> int:
    content = bytearray(store.read(base.file.path))
    place = where(bytes(content))
    content[place] ^= 1
    store.write(base.file.path, bytes(content))
    return place


def test_an_evolved_table_reads_the_key_groups_of_an_older_base(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    rows = state()
    base = bases(store, rows)[0]
    evolved = StateTable.model_validate(
        {**TOTALS.model_dump(), "value": (*TOTALS.value, Column(name="more", type="int", default=3))}
    )
    found = read_groups(store, evolved, base, np.array([2, 3], np.int32))
    assert found.drop_columns(["more"]).equals(_between(rows, 2, 3))
    assert found["more"].unique().to_pylist() == [3]


def test_key_column_is_nullable_only_if_a_key_is_null(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    rows = _between(state(), 0, 31)
    keys = pa.array([None, *rows["key"].to_pylist()[1:]], pa.int64())
    with_null = rows.set_column(1, TOTALS.key_schema.field("key"), keys)
    written = [write_base(store, TOTALS, AT, range(32), each) for each in (rows, with_null)]
    required = [pq.read_schema(store.location(base.file.path)).field("key").nullable for base in written]
    assert required == [False, True]
    groups = np.array([0, 7], np.int32)
    for base, expected in zip(written, (rows, with_null), strict=True):
        mine = expected.filter(pa.array(np.isin(rows["_kg"].to_numpy(), groups)))
        assert read_groups(store, TOTALS, base, groups).equals(mine)
        assert merged(store, TOTALS, Chain(AT, (base,), ()), range(32)).equals(expected)


def test_equal_rows_are_encoded_as_equal_bytes() -> None:
    rows = _between(state(), 0, 31)
    scattered = pa.concat_tables([rows.slice(0, 700), rows.slice(700)]).take(pa.array(np.arange(rows.num_rows)))
    one, other = (encoded_base(TOTALS, AT, range(32), each) for each in (rows, scattered))
    assert (bytes(one.data), one.index) == (bytes(other.data), other.index)
