"""Runs of bases in a long life of one state table: bytes written for each changed byte, space, bytes of a restore.

Random rows of a wide table change until each cell has been rewritten whole. Bytes are counted: they do not depend on
the machine, except for the seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.result import Result, at_most, number
from epochal.backends import heap
from epochal.backends.heap import HeapBackend
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.snapshots import read_counts
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.compaction import jobs_of, merge_runs
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import EMPTY
from epochal.snapshots.merge_policy import CELL_SIZES, CellSizes, CompactionPolicy, bytes_of, bytes_of_bases
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable

KEYS, CHANGED, WIDTH, GROUPS, SUBTASKS = 2_000_000, 10_000, 10, 128, 2
LONGEST = 2_000
"""Epochs after which the measure fails."""
WIDE = StateTable(
    id="wide",
    operator="wide",
    kind=StateKind.AGGREGATE,
    key=(Column(name="key", type="bigint"),),
    value=tuple(Column(name=f"value{number}", type="bigint") for number in range(WIDTH)),
)


def run(folder: Path) -> list[Result]:
    life = Life(SnapshotStore(str(folder / "store")))
    for start in range(0, KEYS, KEYS // 4):
        life.epoch(np.arange(start, start + KEYS // 4))
    life.compact()
    first, live = {run.file.path for run in life.chain.bases}, bytes_of_bases([life.chain])
    life.written.clear()
    chance = np.random.default_rng(1)
    epochs = most_runs = most_bytes = 0
    while first & {run.file.path for run in life.chain.bases}:
        epochs += 1
        if epochs > LONGEST:
            raise RuntimeError("some runs were never merged")
        life.epoch(np.unique(chance.integers(0, KEYS, CHANGED)))
        if CompactionPolicy().is_due({"wide": life.chain}):
            life.compact()
            of_cells = Counter(run.groups for run in life.chain.bases)
            most_runs, most_bytes = max(most_runs, *of_cells.values()), max(most_bytes, bytes_of_bases([life.chain]))
    how = f"{CHANGED:,} random rows of {KEYS:,} of {WIDTH + 1} longs, {epochs} epochs"
    restored = _restored(life, folder / "cache")
    return [
        at_most("runs: bytes written for a byte of delta", life.amplification, 10, "times", f"{how}; deltas included"),
        at_most("runs: space at most, of the live rows", most_bytes / live, 3, "times", how),
        number("runs: of one cell at most", most_runs, "files", how, digits=0),
        at_most("runs: bytes read by a cold start", restored, 1.1, "times the files", f"{SUBTASKS} subtasks, heap"),
        number("runs: mean duration of a compaction", life.seconds / life.compactions, "s", "in this process"),
        number("runs: longest compaction", life.longest, "s", "in this process"),
    ]


@dataclass
class Life:
    """A state table without Spark. ``written``: bytes, by kind of file."""

    store: SnapshotStore
    chain: Chain = EMPTY
    epochs: int = 0
    sizes: CellSizes = CELL_SIZES
    written: Counter[str] = field(default_factory=Counter)
    compactions: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def epoch(self, keys: np.ndarray) -> None:
        self.epochs += 1
        at = EpochKey("main", self.epochs)
        groups = key_groups(pa.table({"key": keys}), WIDE.owner_schema, GROUPS)
        values = np.random.default_rng(self.epochs).integers(0, 1 << 62, (WIDTH, len(keys)))
        columns = {f"value{number}": values[number] for number in range(WIDTH)}
        rows = pa.table({"_kg": groups, "_op": pa.repeat("put", len(keys)), "key": keys} | columns)
        deltas = []
        for subtask in range(SUBTASKS):
            mine = sort_changes(WIDE, rows.filter(pa.array(groups % SUBTASKS == subtask)))
            deltas.append(write_delta(self.store, mine, at, subtask, SUBTASKS))
        self.written["deltas"] += sum(delta.file.bytes for delta in deltas)
        self.chain = Chain(self.chain.base_at, self.chain.bases, (*self.chain.links, Link(at, tuple(deltas))))

    def compact(self) -> None:
        started = time.perf_counter()
        plan = jobs_of(WIDE, self.chain, SUBTASKS, GROUPS, self.sizes)
        new = list(merge_runs(self.store, plan.jobs))
        self.written["runs"] += sum(run.file.bytes for run in new)
        self.chain = Chain(self.chain.at, (*plan.kept, *new), ())
        seconds = time.perf_counter() - started
        self.compactions, self.seconds = self.compactions + 1, self.seconds + seconds
        self.longest = max(self.longest, seconds)

    @property
    def amplification(self) -> float:
        return sum(self.written.values()) / self.written["deltas"]


def _restored(life: Life, cache: Path) -> float:
    """Bytes that all subtasks together read, each on a new machine, of the bytes of the files."""
    assert life.chain.at is not None
    read_counts.forget()
    for subtask in range(SUBTASKS):
        heap.forget()
        epoch = EpochScope("benchmark", EpochKey("main", life.epochs + 1), 1, life.chain.at)
        scope = StateTaskScope(epoch, "wide", subtask, SUBTASKS, GROUPS, (WIDE,), {WIDE.id: life.chain})
        HeapBackend("wide", life.store, str(cache / str(subtask))).start(scope).discard()
    return read_counts.totals()["store"] / bytes_of([life.chain])
