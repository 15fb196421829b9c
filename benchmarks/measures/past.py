"""Queries on past state of a million keys: look-ups at an old epoch, history of a key, difference of two epochs.

The snapshots are written directly to a store by the functions of the engine's tasks, so that the files equal those of
an application and no other process disturbs the measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.result import Result, at_most, number
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions
from epochal.contracts.identity import EpochKey
from epochal.snapshots import row_groups, store
from epochal.snapshots import scan as scans
from epochal.snapshots.compaction import compact
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.difference import table_difference
from epochal.snapshots.key_history import HistoryPosition, history_of_key
from epochal.snapshots.lineage import find_route, read_chains
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.scan import scan
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable

KEYS, CHANGES, DELTAS, EPOCHS = 1_000_000, 10_000, 50, 1_000
SMALL_CHANGES = 1_000
"""Changes of an epoch in the long history."""
PARALLELISM, GROUPS = 2, 128
LOOKUPS, COLD = 40, 7
TABLE = StateTable(
    id="delays",
    operator="delays",
    kind=StateKind.AGGREGATE,
    key=(Column(name="route", type="string"),),
    value=(Column(name="flights", type="bigint"), Column(name="total", type="double")),
)


class Line:
    """Epochs of one branch."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.store = SnapshotStore(str(folder))
        self.references: list[ManifestReference] = []
        self._keys = keys
        self._chance = np.random.default_rng(1)
        self._bases: tuple[BaseFile, ...] = ()

    def epoch(self, keys: np.ndarray) -> None:
        """Write one epoch that changes these keys."""
        key = EpochKey("main", len(self.references) + 1)
        routes = pa.array(np.char.add("route-", keys.astype(str)))
        columns = pa.table({"route": routes}, schema=TABLE.key_schema)
        groups = key_groups(columns, TABLE.key_schema, GROUPS)
        values = [pa.array(np.full(len(keys), key.epoch)), pa.array(self._chance.random(len(keys)))]
        rows = pa.table([pa.array(groups), pa.repeat("put", len(keys)), routes, *values], schema=TABLE.delta_schema)
        deltas = [
            write_delta(
                self.store,
                sort_changes(TABLE, rows.filter(pa.array(groups % PARALLELISM == subtask))),
                key,
                subtask,
                PARALLELISM,
            )
            for subtask in range(PARALLELISM)
        ]
        manifest = Manifest(
            application="benchmark",
            branch=key.branch,
            epoch=key.epoch,
            parent=self.references[-1] if self.references else None,
            execution="x",
            attempt=1,
            artifact="0" * 64,
            parallelism=PARALLELISM,
            max_parallelism=GROUPS,
            tables=(TABLE,),
            deltas=tuple(deltas),
            bases=self._bases,
            conditions=EpochConditions(clock=Clock(epoch_time=0)),
            created_at=datetime.now(UTC),
        )
        self._bases = ()
        self.references.append(self.store.write_manifest(manifest))

    def some(self, count: int) -> np.ndarray:
        return self._chance.choice(self._keys, count, replace=False)

    def compact(self) -> None:
        chain = read_chains(self.store, self.references[-1], [TABLE.id])[TABLE.id]
        self._bases = compact(self.store, TABLE, chain, GROUPS)


def run(folder: Path) -> list[Result]:
    line = Line(folder / "store", KEYS)
    line.epoch(np.arange(KEYS))
    line.compact()
    for _ in range(DELTAS):
        line.epoch(line.some(CHANGES))
    results = [*_lookups(line), *_differences(line), *_scans(line)]
    long = Line(folder / "long", KEYS)
    for _ in range(EPOCHS):
        long.epoch(long.some(SMALL_CHANGES))
    return [*results, *_histories(long)]


def _lookups(line: Line) -> list[Result]:
    reader = line.references[-1]
    keys = [(f"route-{key}",) for key in line.some(LOOKUPS).tolist()]

    def look_up(key: tuple[str]) -> None:
        (row,) = SnapshotReader(line.store, reader).get(TABLE.id, [key])
        assert row is not None

    cold = []
    for key in keys[:COLD]:
        forget()
        cold.append(seconds(partial(look_up, key)))
    for key in keys:
        look_up(key)
    warm = [seconds(partial(look_up, key)) for key in keys]
    how = f"{KEYS:,} keys, base and {DELTAS} deltas of {CHANGES:,} changes; median, without HTTP"
    return [
        at_most("look-up at an old epoch, warm", median(warm) * 1000, 20, "ms", how, digits=1),
        at_most("look-up at an old epoch, cold", median(cold) * 1000, 300, "ms", "without caches", digits=0),
    ]


def _differences(line: Line) -> list[Result]:
    left, right = line.references[-2:]

    def compare() -> None:
        route = find_route(line.store, left, right)
        found = table_difference(SnapshotReader(line.store, left), SnapshotReader(line.store, right), route, TABLE.id)
        assert found.added + found.changed == CHANGES

    times = []
    for _ in range(COLD):
        forget()
        times.append(seconds(compare))
    how = f"{CHANGES:,} changes at {KEYS:,} keys, without caches; median of {COLD}"
    return [
        at_most("diff of neighbouring epochs", median(times), 1, "s", how),
        number("diff of neighbouring epochs, warm", seconds(compare), "s"),
    ]


def _scans(line: Line) -> list[Result]:
    def page(after: bytes | None = None) -> bytes:
        reader = SnapshotReader(line.store, line.references[-1])
        found = scan(reader, TABLE.id, b"route-5", after, 500)
        assert len(found.keys) == 500
        return found.keys[-1]

    def all_pages() -> None:
        reader, after, found = SnapshotReader(line.store, line.references[-1]), None, 0
        while (part := scan(reader, TABLE.id, b"", after, 500)).keys:
            after, found = part.keys[-1], found + len(part.keys)
        assert found == KEYS

    first, last = [], b""
    for _ in range(COLD):
        forget()
        started = time.perf_counter()
        last = page()
        first.append(time.perf_counter() - started)
    again = seconds(lambda: page(last))
    forget()
    how = f"{KEYS:,} keys, base and {DELTAS} deltas of {CHANGES:,} changes, pages of 500, without caches"
    return [
        at_most("scan at an old epoch, first page", median(first), 0.3, "s", f"{how}; median of {COLD}"),
        number("scan at an old epoch, next page", again * 1000, "ms", digits=1),
        number("scan at an old epoch, all pages", seconds(all_pages), "s", digits=1),
    ]


def _histories(line: Line) -> list[Result]:
    found: list[int] = []

    def history() -> None:
        position: HistoryPosition | None = HistoryPosition(line.references[-1])
        key = (f"route-{line.some(1)[0]}",)
        while position is not None:
            page = history_of_key(line.store, TABLE.id, key, position, 500)
            found.append(len(page.changes))
            position = page.following

    times = []
    for _ in range(3):
        forget()
        times.append(seconds(history))
    how = f"{EPOCHS:,} epochs of {SMALL_CHANGES:,} changes, without caches; median of 3"
    return [at_most("history of a key", median(times), 2, "s", how)]


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def forget() -> None:
    """Clear all caches except that of the operating system."""
    row_groups.forget()
    scans.forget()
    store._manifests.clear()
