"""Cost of the pages of a scan: number of sorted rows and number of passes over the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.measures.past import TABLE, Line
from epochal.snapshots import scan as scans
from epochal.snapshots.reader import SnapshotReader, TableSearch
from epochal.snapshots.row_groups import Groups
from epochal.snapshots.scan import FIRST_ROWS, SECTIONS, scan
from epochal.state.key_codec import KeyCodec

KEYS = 20_000


class Counted:
    """Counts the rows that were merged (``ordered``) and the passes over all files (``passes``)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ordered: list[int] = []
        self.passes = 0
        of_files, existing = TableSearch.of_files, TableSearch.there

        def counted_files(search: TableSearch, groups: Groups | None, make: Callable[..., Any]) -> list[Any]:
            self.passes += 1
            return of_files(search, groups, make)

        def counted_rows(search: TableSearch, of_files: Sequence[pa.Table]) -> pa.Table:
            self.ordered.append(sum(rows.num_rows for rows in of_files))
            return existing(search, of_files)

        monkeypatch.setattr(TableSearch, "of_files", counted_files)
        monkeypatch.setattr(TableSearch, "there", counted_rows)


@pytest.fixture
def reader(tmp_path: Path) -> SnapshotReader:
    line = Line(tmp_path, KEYS)
    line.epoch(np.arange(KEYS))
    line.compact()
    for _ in range(5):
        line.epoch(line.some(500))
    scans.forget()
    return SnapshotReader(line.store, line.references[-1])


def in_order(reader: SnapshotReader) -> tuple[list[bytes], pa.Table]:
    """Read and sort the whole table."""
    rows = reader.read(TABLE.id)
    keys = KeyCodec(TABLE.address_schema).encode(rows)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [keys[place] for place in order], rows.take(pa.array(order))


def test_a_first_page_sorts_few_rows_and_a_scan_passes_over_files_twice(
    reader: SnapshotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, rows = in_order(reader)
    counted = Counted(monkeypatch)
    first = scan(reader, TABLE.id, b"", None, 500)
    assert first.keys == keys[:500] and first.rows.equals(rows.slice(0, 500)) and first.more
    assert counted.passes == 1 and sum(counted.ordered) <= 2 * FIRST_ROWS
    found, after = [first], first.keys[-1]
    while found[-1].more:
        found.append(scan(reader, TABLE.id, b"", after, 500))
        after = found[-1].keys[-1]
    assert [key for page in found for key in page.keys] == keys
    assert pa.concat_tables([page.rows for page in found]).equals(rows)
    assert counted.passes == 2


def test_scans_of_many_prefixes_sort_all_keys_once(reader: SnapshotReader, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, rows = in_order(reader)
    counted = Counted(monkeypatch)
    prefixes = [f"route-1{number}".encode() for number in range(10)]
    for _ in range(2):
        for prefix in prefixes:
            page = scan(reader, TABLE.id, prefix, None, 5)
            begin = next(place for place, key in enumerate(keys) if key.startswith(prefix))
            assert page.keys == keys[begin : begin + 5] and page.rows.equals(rows.slice(begin, 5))
    assert counted.passes == SECTIONS + 1


def test_outdated_rows_do_not_end_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least keys have many versions, so the first rows chosen contain too few keys for a page."""
    line = Line(tmp_path, KEYS)
    line.epoch(np.arange(2_000))
    for _ in range(8):
        line.epoch(np.arange(1_000))
    scans.forget()
    monkeypatch.setattr(scans, "FIRST_ROWS", 64)
    reader = SnapshotReader(line.store, line.references[-1])
    keys, _ = in_order(reader)
    assert scan(reader, TABLE.id, b"", None, 100).keys == keys[:100]
    assert scan(reader, TABLE.id, b"", keys[99], 1_900).keys == keys[100:]
