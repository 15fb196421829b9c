"""Reads of state within a task: a subtask looks up 100,000 keys and reads the lists of 20,000 keys in each store.

The two stores alternate. Measured is the CPU time of one process, as in a task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.result import Result, number
from epochal.backends.delta import DeltaBackend
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope, StateTransaction
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.lineage import EMPTY
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess
from epochal.state.keygroups import Groups, key_groups, subtask_of
from epochal.state.table import Column, StateKind, StateTable

KEYS, LOOKED_UP, LISTS, ELEMENTS, GROUPS, SUBTASKS, TURNS = 500_000, 100_000, 20_000, 3, 128, 2, 7
KEY = (Column(name="key", type="bigint"),)
VALUE = (Column(name="rows", type="bigint"), Column(name="total", type="bigint"))
COUNTS = StateTable(id="reads.counts", operator="reads", kind=StateKind.AGGREGATE, key=KEY, value=VALUE)
RECENT = StateTable(
    id="reads.recent",
    operator="reads",
    kind=StateKind.LIST,
    key=KEY,
    sub_key=(Column(name="_index", type="bigint"),),
    value=(Column(name="element", type="bigint"),),
)
BACKENDS: dict[str, type[DeltaBackend]] = {"heap": HeapBackend, "LMDB": LmdbBackend}


def run(folder: Path) -> list[Result]:
    pa.set_cpu_count(1)  # as in the worker of a task
    keys = np.arange(KEYS, dtype=np.int64)
    counts = owned(pa.table({"key": keys, "rows": keys % 100, "total": keys * 3}))
    owners = keys[: LISTS * 4]
    elements = {"_index": np.tile(np.arange(ELEMENTS), len(owners)), "element": np.repeat(owners, ELEMENTS)}
    recent = owned(pa.table({"key": np.repeat(owners, ELEMENTS), **elements}))
    chosen = counts.take(pa.array(np.random.default_rng(1).permutation(counts.num_rows)[:LOOKED_UP])).combine_chunks()
    lists = recent.filter(pa.array(recent.column("_index").to_numpy() == 0)).slice(0, LISTS).combine_chunks()
    seconds: dict[tuple[str, str], list[float]] = {}
    transactions = {name: _transaction(folder / name, kind, counts, recent) for name, kind in BACKENDS.items()}
    for turn in range(TURNS + 1):
        for name, transaction in transactions.items():
            in_table = {table.id: TableAccess(table, transaction.view(table.id), GROUPS) for table in (COUNTS, RECENT)}
            looked_up = _timed(in_table[COUNTS.id].get, chosen)
            read = _timed(in_table[RECENT.id].entries, lists)
            if turn:
                seconds.setdefault((name, "look-up"), []).append(looked_up)
                seconds.setdefault((name, "lists"), []).append(read)
    how = f"a subtask with {counts.num_rows:,} keys of state; CPU time, median of {TURNS}"
    what = {"look-up": f"{LOOKED_UP:,} keys looked up", "lists": f"lists of {LISTS:,} keys, {ELEMENTS} elements each"}
    return [
        number(f"state in a task, {name}: {what[read]}", median(times) * 1000, "ms", how, digits=0)
        for (name, read), times in seconds.items()
    ]


def _transaction(folder: Path, kind: type[DeltaBackend], counts: pa.Table, recent: pa.Table) -> StateTransaction:
    """Start a transaction whose parent epoch has put these rows."""
    backend = kind("reads", SnapshotStore(str(folder / "store")), str(folder / "cache"))
    first, second = EpochKey("main", 1), EpochKey("main", 2)

    def scope(at: EpochKey, parent: EpochKey | None, chains: dict[str, Chain]) -> StateTaskScope:
        epoch = EpochScope("benchmark", at, 1, parent)
        return StateTaskScope(epoch, "reads", 0, SUBTASKS, GROUPS, (COUNTS, RECENT), chains)

    writing = backend.start(scope(first, None, {COUNTS.id: EMPTY, RECENT.id: EMPTY}))
    for table, rows in ((COUNTS, counts), (RECENT, recent)):
        writing.stage(table.id, rows.append_column("_op", pa.repeat("put", rows.num_rows)))
    deltas = backend.deltas(writing.pre_commit())
    chains = {
        table.id: Chain(None, (), (Link(first, tuple(delta for delta in deltas if delta.table == table.id)),))
        for table in (COUNTS, RECENT)
    }
    return backend.start(scope(second, first, chains))


def owned(rows: pa.Table) -> pa.Table:
    """Rows of the first subtask, with their key groups."""
    groups = key_groups(rows, COUNTS.owner_schema, GROUPS)
    mine = pa.array(subtask_of(groups, SUBTASKS) == 0)
    return rows.append_column("_kg", pa.array(groups)).filter(mine)


def _timed(read: Callable[[pa.Table, Groups], object], rows: pa.Table) -> float:
    keys, groups = rows.select(["key"]), rows.column("_kg").to_numpy()
    started = time.process_time()
    read(keys, groups)
    return time.process_time() - started
