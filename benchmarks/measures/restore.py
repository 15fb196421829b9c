"""Restoring state from bases into empty local stores: two subtasks concurrently in separate processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measures.state_views import BACKENDS
from benchmarks.result import Result, at_least, number
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.snapshots.chain import Chain
from epochal.snapshots.compaction import write_base
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable

KEYS, CELLS, GROUPS, SUBTASKS = 10_000_000, 16, 128, 2
HEAD = EpochKey("main", 1)
COUNTS = StateTable(
    id="counts",
    operator="counts",
    kind=StateKind.AGGREGATE,
    key=(Column(name="key", type="bigint"),),
    value=(Column(name="rows", type="bigint"), Column(name="total", type="bigint")),
)


def run(folder: Path) -> list[Result]:
    store = SnapshotStore(str(folder / "store"))
    started = time.perf_counter()
    bases = tuple(_bases(store))
    written = time.perf_counter() - started
    chain = Chain(HEAD, bases, ())
    how = f"{KEYS:,} keys, {len(bases)} files, {SUBTASKS} concurrent subtasks"
    return [
        *(
            at_least(
                f"restore: keys a second, {kind}", KEYS / _seconds(store, kind, folder, chain) / 1e6, 1.0, "M/s", how
            )
            for kind in BACKENDS
        ),
        number("restore: writing of the bases", KEYS / written / 1e6, "M/s", "sort, encode, sync", digits=2),
    ]


def _seconds(store: SnapshotStore, kind: str, folder: Path, chain: Chain) -> float:
    """Seconds until all subtasks have their rows."""
    with ProcessPoolExecutor(SUBTASKS, mp_context=get_context("spawn")) as processes:
        list(processes.map(_ready, range(SUBTASKS)))
        started = time.perf_counter()
        arguments = (store.url, kind, str(folder / "cache"), chain)
        for task in [processes.submit(_restore, *arguments, subtask) for subtask in range(SUBTASKS)]:
            task.result()
        return time.perf_counter() - started


def _bases(store: SnapshotStore) -> Iterator[BaseFile]:
    keys = np.arange(KEYS, dtype=np.int64)
    groups = key_groups(pa.table({"key": keys}), pa.schema([pa.field("key", pa.int64())]), GROUPS)
    order = np.argsort(groups, kind="stable")  # keys are already ascending within a group
    keys, groups = keys[order], groups[order]
    for index in range(CELLS):
        cell = range(index, GROUPS, CELLS)
        in_cell = groups % CELLS == index
        mine = keys[in_cell]
        rows = pa.table({"_kg": groups[in_cell].astype(np.int32), "key": mine, "rows": mine % 100, "total": mine * 3})
        yield write_base(store, COUNTS, HEAD, cell, rows)


def _ready(_: int) -> None:
    """Called once in each process, which has then started and imported its modules."""
    time.sleep(1)


def _restore(url: str, kind: str, cache: str, chain: Chain, subtask: int) -> None:
    """Restore one subtask and check that it has its rows."""
    epoch = EpochScope("benchmark", EpochKey("main", 2), 1, HEAD)
    scope = StateTaskScope(epoch, "counts", subtask, SUBTASKS, GROUPS, (COUNTS,), {COUNTS.id: chain})
    transaction = BACKENDS[kind]("counts", SnapshotStore(url), cache).start(scope)
    keys = pa.table({"key": np.arange(0, KEYS, 1009)})
    groups = key_groups(keys, COUNTS.owner_schema, GROUPS)
    mine = groups % SUBTASKS == subtask
    found, _ = TableAccess(COUNTS, transaction.view(COUNTS.id), GROUPS).get(keys.filter(pa.array(mine)), groups[mine])
    transaction.discard()
    if not found.all():
        raise RuntimeError(f"subtask {subtask} lacks {int((~found).sum())} of {len(found)} keys")
