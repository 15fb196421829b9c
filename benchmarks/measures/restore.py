"""Restoring state into empty local stores, from bases alone: two subtasks at once, a process each, as executors do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.result import Result, at_least, number
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.snapshots.chain import Chain
from epochal.snapshots.compaction import KeyGroupRange, write_base
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable

KEYS, RANGES, GROUPS, SUBTASKS = 10_000_000, 16, 128, 2
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
    with ProcessPoolExecutor(SUBTASKS, mp_context=get_context("spawn")) as processes:
        list(processes.map(_ready, range(SUBTASKS)))
        started = time.perf_counter()
        tasks = [processes.submit(_restore, store.url, str(folder / "cache"), chain, task) for task in range(SUBTASKS)]
        restored = sum(task.result() for task in tasks)
        seconds = time.perf_counter() - started
    if restored != KEYS:
        raise RuntimeError(f"{restored} of {KEYS} keys were restored")
    how = f"{KEYS:,} keys, {len(bases)} files, into LMDB, {SUBTASKS} subtasks at once; {seconds:.1f} s"
    return [
        at_least("restore: keys a second", restored / seconds / 1e6, 1.0, "M/s", how, digits=2),
        number("restore: writing the bases before it", KEYS / written / 1e6, "M/s", "sort, encode, sync", digits=2),
    ]


def _bases(store: SnapshotStore) -> Iterator[BaseFile]:
    keys = np.arange(KEYS, dtype=np.int64)
    groups = key_groups(pa.table({"key": keys}), pa.schema([pa.field("key", pa.int64())]), GROUPS)
    order = np.argsort(groups, kind="stable")  # within a group keys rise already
    keys, groups = keys[order], groups[order]
    for index in range(RANGES):
        part = KeyGroupRange(index * GROUPS // RANGES, (index + 1) * GROUPS // RANGES - 1)
        first, end = np.searchsorted(groups, [part.first, part.last + 1])
        mine = keys[first:end]
        rows = pa.table({"_kg": groups[first:end].astype(np.int32), "key": mine, "rows": mine % 100, "total": mine * 3})
        yield write_base(store, COUNTS, HEAD, part, rows)


def _ready(_: int) -> None:
    """The process has started and imported what it needs; each takes one of these."""
    time.sleep(1)


def _restore(url: str, cache: str, chain: Chain, subtask: int) -> int:
    """The rows of one subtask, of those restored that it can see."""
    epoch = EpochScope("benchmark", EpochKey("main", 2), 1, HEAD)
    scope = StateTaskScope(epoch, "counts", subtask, SUBTASKS, GROUPS, (COUNTS,), {COUNTS.id: chain})
    backend = LmdbBackend("counts", SnapshotStore(url), cache)
    transaction = backend.start(scope)
    view = transaction.view(COUNTS.id)
    groups = range(subtask, GROUPS, SUBTASKS)
    seen = sum(len(view.scan(group, b"")[0]) for group in groups[:1])
    transaction.discard()
    expected = sum(base.file.rows for base in chain.bases) // SUBTASKS
    return expected if seen else 0
