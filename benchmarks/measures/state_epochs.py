"""Epochs of one subtask without Spark: open a view, look up and change keys, write a delta.

Heap and LMDB alternate epoch by epoch with the same keys. Measured is the CPU time of all threads of the process.
Merging, which runs in parallel with epochs, is measured separately after each epoch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.measures.state_views import BACKENDS, COUNTS, GROUPS, SUBTASKS, owned
from benchmarks.result import Result, number
from epochal.backends import heap, lmdb, recent
from epochal.backends.delta import DeltaBackend
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess

KEYS, CHANGED, FEW, EPOCHS, WARM = 500_000, 100_000, 10, 24, 4
PARTS = ("view opened", "looked up", "delta written", "merging")


def run(folder: Path) -> list[Result]:
    pa.set_cpu_count(1)  # as in the worker of a task
    keys = np.arange(KEYS, dtype=np.int64)
    rows = owned(pa.table({"key": keys, "rows": keys % 100, "total": keys * 3})).combine_chunks()
    chance = np.random.default_rng(1)
    sides = {
        name: _Side(kind("reads", SnapshotStore(str(folder / name / "store")), str(folder / name / "cache")))
        for name, kind in BACKENDS.items()
    }
    results = []
    for side in sides.values():
        side.epoch(rows)
    for changed in (CHANGED, FEW):
        for side in sides.values():
            side.seconds.clear()
        for _ in range(EPOCHS):
            chosen = rows.take(pa.array(chance.permutation(rows.num_rows)[:changed])).combine_chunks()
            for side in sides.values():
                side.epoch(chosen)
        how = f"a subtask with {rows.num_rows:,} keys of state, {changed:,} changed in an epoch; CPU time"
        for name, side in sides.items():
            seconds = np.array(side.seconds[WARM:])
            times = zip(PARTS, [*np.median(seconds, axis=0)[:3].tolist(), float(seconds[:, 3].mean())], strict=True)
            parts = ", ".join(f"{part} {1000 * took:.1f}" for part, took in times)
            whole = float(seconds[:, :3].sum(axis=1).mean())
            what = f"state in epochs, {name}: {changed:,} keys, without merging"
            results.append(number(what, 1000 * whole, "ms", f"{how}, mean; ms: {parts}", digits=1))
    for name, side in sides.items():
        restored = median(side.restored() for _ in range(3))
        results.append(number(f"state in epochs, {name}: a new worker's first view", 1000 * restored, "ms", digits=0))
    return results


@dataclass
class _Side:
    backend: DeltaBackend
    links: tuple[Link, ...] = ()
    seconds: list[tuple[float, float, float, float]] = field(default_factory=list)
    """By part."""

    def epoch(self, rows: pa.Table) -> None:
        times = [time.process_time()]
        transaction = self.backend.start(self._scope())
        times.append(time.process_time())
        access = TableAccess(COUNTS, transaction.view(COUNTS.id), GROUPS)
        access.get(rows.select(["key"]), rows.column("_kg").to_numpy())
        times.append(time.process_time())
        transaction.stage(COUNTS.id, rows.append_column("_op", pa.repeat("put", rows.num_rows)))
        handle = transaction.pre_commit()
        times.append(time.process_time())
        for lists in heap.lists().values():
            lists.wait()
        times.append(time.process_time())
        self.links += (Link(self._at(1), self.backend.deltas(handle)),)
        opened, looked_up, written, merged = np.diff(times).tolist()
        self.seconds.append((opened, looked_up, written, merged))

    def restored(self) -> float:
        """Seconds of the first view in a new process on the same machine."""
        for module in (heap, lmdb, recent):
            module.forget()
        started = time.process_time()
        transaction = self.backend.start(self._scope())
        took = time.process_time() - started
        transaction.discard()
        return took

    def _at(self, later: int = 0) -> EpochKey:
        return EpochKey("main", len(self.links) + later)

    def _scope(self) -> StateTaskScope:
        epoch = EpochScope("benchmark", self._at(1), 1, self._at() if self.links else None)
        chain = Chain(None, (), self.links)
        return StateTaskScope(epoch, "reads", 0, SUBTASKS, GROUPS, (COUNTS,), {COUNTS.id: chain})
