"""Look-ups in runs of several row groups and filters find what the rows of the runs say, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt
from epochal.snapshots import base_files, row_groups
from epochal.snapshots.chain import Chain
from epochal.snapshots.compaction import write_base
from epochal.snapshots.delta import PUT
from epochal.snapshots.key_filter import KeyFilter, KeyHashes
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.merging import folded, puts_of
from epochal.snapshots.reader import FoundRows, RequestedKeys, TableSearch, key_table
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateTable
from epochal.testing.state_world import (
    COUNTS,
    GROUPS,
    SEEN,
    WINDOWS,
    Change,
    changes_of,
    counted,
    seen,
    uncounted,
    unseen,
    unwindowed,
    windows,
)

AT = EpochKey("main", 1)
NUMBERS = range(60)
WINDOWED = WINDOWS.model_copy(update={"expires": None})
LARGE = StateTable(
    id="large",
    operator="large",
    kind=COUNTS.kind,
    key=(Column(name="key", type="bigint"),),
    value=(Column(name="value", type="bigint"),),
)


@pytest.fixture(autouse=True, scope="module")
def small_row_groups() -> Iterator[None]:
    """Key groups of a few rows have several row groups and a filter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_files, "LEAST_CHUNK_BYTES", 0)
        patch.setattr(base_files, "ROW_GROUP", 2)
        patch.setattr(row_groups, "SMALL_BYTES", 0)
        yield


def written(store: SnapshotStore, table: StateTable, changes: list[Change], age: int) -> BaseFile:
    changed = changes_of(table, changes).cast(table.delta_schema)
    rows = folded(table, [table.delta_schema.empty_table(), changed])  # in order
    return write_base(store, table, AT, range(GROUPS), rows if age else puts_of(table, rows), age)


def found(store: SnapshotStore, table: StateTable, runs: list[BaseFile], keys: list[tuple[Any, ...]]) -> FoundRows:
    requested = RequestedKeys.of(table, key_table(table, keys), GROUPS)
    return TableSearch(store, table, Chain(AT, tuple(runs), ())).find(requested)


def found_one_by_one(
    store: SnapshotStore, table: StateTable, runs: list[BaseFile], keys: list[tuple[Any, ...]]
) -> None:
    for key in keys:
        found(store, table, runs, [key])


def address(table: StateTable, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column.name] for column in table.address)


@st.composite
def histories(draw: st.DrawFn, table: StateTable) -> list[list[Change]]:
    """Changes of each run, oldest first: puts and deletes of some keys."""
    runs = []
    for age in range(draw(st.integers(1, 4))):
        changes: list[Change] = []
        for number in draw(st.lists(st.sampled_from(NUMBERS), unique=True, max_size=40)):
            deletes = draw(st.booleans())
            places = draw(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=9))
            changes += _changes(table, number, places, deletes, age)
        runs.append(changes)
    return runs


def _changes(table: StateTable, number: int, places: list[int], deletes: bool, age: int) -> list[Change]:
    if table is COUNTS:
        return uncounted(number) if deletes else counted(number, count=age)
    if table is SEEN:
        names = [b"p%d" % place for place in places]
        return unseen(number, *names) if deletes else seen(number, *names, times=age)
    at = [(number, place) for place in places]
    return unwindowed(*at) if deletes else windows(*at, count=age)


@pytest.mark.parametrize("table", [COUNTS, SEEN, WINDOWED], ids=lambda table: str(table.id))
@given(data=st.data())
def test_runs_are_searched_as_their_rows_say(table: StateTable, data: st.DataObject) -> None:
    row_groups.forget()
    store = SnapshotStore(f"memory://{uuid4()}")
    histories_of_runs = data.draw(histories(table))
    runs, expected = [], dict[tuple[Any, ...], Change]()
    for age, changes in enumerate(histories_of_runs):
        runs.append(written(store, table, changes, age))
        for change in changes:
            if len(change) > len(table.address):
                expected[address(table, change)] = change
            else:
                expected.pop(address(table, change), None)

    owners = [address(COUNTS, counted(number)[0]) for number in NUMBERS]
    some = data.draw(st.lists(st.sampled_from(owners), unique=True, min_size=1))
    for _ in range(2):  # the second search finds the row groups in the cache
        rows = found(store, table, runs, some)
        of_owners = {address(table, row): row for row in rows.rows.to_pylist()}
        assert of_owners == {key: row for key, row in expected.items() if key[:2] in some}
        assert [some[place] for place in rows.owner.tolist()] == [key[:2] for key in of_owners]

    if expected:
        whole = data.draw(st.lists(st.sampled_from(sorted(expected, key=repr)), unique=True))
        absent = [(f"absent {number}", *key[1:]) for number, key in enumerate(whole)]
        rows = found(store, table, runs, [*whole, *absent]) if whole else None
        if rows is not None:
            assert {address(table, row) for row in rows.rows.to_pylist()} == set(whole)


@given(st.sets(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1), st.sets(st.binary(max_size=9), min_size=1))
def test_a_filter_contains_all_of_its_keys(numbers: set[int], texts: set[bytes]) -> None:
    for values, type in ((numbers, pa.int64()), (texts | {None}, pa.binary())):
        keys = pa.table({"key": pa.array(list(values), type)})
        hashes = KeyHashes.of(keys, keys.schema)
        made = KeyFilter.of(hashes)
        assert KeyFilter.from_bytes(made.to_bytes()).may_contain(hashes).all()


def test_a_filter_excludes_most_absent_keys() -> None:
    keys = pa.table({"key": np.arange(200_000)})
    hashes = KeyHashes.of(keys, keys.schema)
    made = KeyFilter.of(hashes.some(slice(0, 100_000)))
    assert made.may_contain(hashes.some(slice(0, 100_000))).all()
    assert made.may_contain(hashes.some(slice(100_000, None))).mean() < 0.02
    assert len(made.to_bytes()) < 100_000 * 10 / 8 + 32


def large_runs(store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> list[BaseFile]:
    """Two runs, each of half of 400,000 keys, with row groups of 1,000 rows."""
    monkeypatch.setattr(base_files, "ROW_GROUP", 1_000)
    rows = pa.table({"key": np.arange(400_000), "value": np.random.default_rng(1).integers(0, 1 << 60, 400_000)})
    rows = rows.append_column("_kg", pa.array(LARGE.key_groups(rows, GROUPS)))
    rows = rows.append_column("_op", pa.repeat(PUT, rows.num_rows)).select(LARGE.delta_schema.names)
    halves = (rows.slice(0, 200_000), rows.slice(200_000))
    return [
        write_base(store, LARGE, AT, range(GROUPS), half.sort_by([("_kg", "ascending"), ("key", "ascending")]), age)
        for age, half in enumerate(halves)
    ]


def test_a_look_up_reads_one_row_group_of_the_run_that_has_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    runs = large_runs(store, monkeypatch)
    opened: list[tuple[str, int]] = []
    real = row_groups._row_groups.put
    monkeypatch.setattr(row_groups._row_groups, "put", lambda key, *rest: (opened.append(key), real(key, *rest)))
    for key, number in ((7, 1), (399_999, 1), (400_000, 0)):
        opened.clear()
        assert found(store, LARGE, runs, [(key,)]).rows.num_rows == number
        assert len(opened) == number


def test_a_damaged_filter_is_reported(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    run = written(store, COUNTS, counted(*NUMBERS), 0)
    assert run.index is not None
    path = tmp_path / run.file.path
    data = bytearray(path.read_bytes())
    data[run.index.offset - 1] ^= 1  # the last byte of the last filter
    path.write_bytes(data)
    with pytest.raises(FileCorrupt, match="the filter of key group 15 does not have"):
        found_one_by_one(store, COUNTS, [run], [address(COUNTS, change) for change in counted(*NUMBERS)])
