"""After any operations on a state table, backends, bases and readers hold the rows of a plain dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epochal.backends import heap, pruning
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.backends.runs import lists
from epochal.snapshots import base_files
from epochal.snapshots.merge_policy import CELL_SIZES, CellSizes
from epochal.snapshots.merging import merged
from epochal.testing.state_world import (
    COUNTS,
    GROUPS,
    SMALL_CELLS,
    TABLES,
    VISITS,
    WINDOWS,
    Change,
    World,
    counted,
    seen,
    uncounted,
    unseen,
    unvisited,
    unwindowed,
    visits,
    windows,
)
from tests.spark.contract.local_stores import LocalStoreHarness

SIZES = (SMALL_CELLS, CELL_SIZES, CellSizes(whole=0, least=1 << 30, merged=0), CellSizes(whole=0, most=1, least=1))
STEPS = st.sampled_from([0, 0, 1, 9])
"""Increments of a clock."""
EVERY_TABLE = (*TABLES, WINDOWS, VISITS)
OWNERS = [0, 1, 2, 3, 13, 17]
PLACES = [b"", b"\0", b"a", b"a\0", b"p" * 520, b"p" * 520 + b"q"]


@st.composite
def epochs(draw: st.DrawFn) -> dict[str, list[Change]]:
    """The changes of one epoch, at most one per key."""
    counts = draw(st.dictionaries(st.integers(0, 25), st.integers(0, 3), max_size=12))
    entries = draw(
        st.dictionaries(
            st.tuples(st.sampled_from(OWNERS), st.sampled_from(PLACES)),
            st.integers(0, 2),
            max_size=6,
        )
    )
    timed = draw(
        st.dictionaries(st.tuples(st.sampled_from(OWNERS), st.integers(-2, 30)), st.integers(0, 2), max_size=6)
    )
    touched = draw(
        st.dictionaries(
            st.tuples(st.sampled_from(OWNERS), st.sampled_from(PLACES)),
            st.one_of(st.none(), st.integers(-1, 25)),
            max_size=6,
        )
    )
    return {
        "windows": [row for at, c in timed.items() for row in (windows(at, count=c) if c else unwindowed(at))],
        "visits": [
            row for (n, p), at in touched.items() for row in (unvisited(n, p) if at == -1 else visits(n, p, touched=at))
        ],
        "counts": [row for n, c in counts.items() for row in (counted(n, count=c) if c else uncounted(n))],
        "seen": [row for (n, p), t in entries.items() for row in (seen(n, p, times=t) if t else unseen(n, p))],
    }


class Lives(RuleBasedStateMachine):
    """Branches of one application: run, forked, compacted, rescaled and restored in any order as clocks advance."""

    @initialize(
        backend=st.sampled_from([HeapBackend, LmdbBackend]),
        parallelism=st.integers(1, 3),
        by_key_group=st.booleans(),
        in_files=st.booleans(),
    )
    def begin(
        self, backend: type[HeapBackend | LmdbBackend], parallelism: int, by_key_group: bool, in_files: bool
    ) -> None:
        self.least_chunk = base_files.LEAST_CHUNK_BYTES
        base_files.LEAST_CHUNK_BYTES = 0 if by_key_group else self.least_chunk
        self.folder = Path(tempfile.mkdtemp())
        self.harness = LocalStoreHarness(backend, self.folder)
        self.fewest_rows, pruning.FEWEST_ROWS = pruning.FEWEST_ROWS, 2
        self.file_rows, lists.FILE_ROWS = lists.FILE_ROWS, 1 if in_files else lists.FILE_ROWS
        self.worlds = [World(self.harness, parallelism, EVERY_TABLE)]
        self.past: list[World] = []

    @rule(changes=epochs(), elsewhere=st.booleans(), steps=st.tuples(STEPS, STEPS), data=st.data())
    def run_epoch(
        self, changes: dict[str, list[Change]], elsewhere: bool, steps: tuple[int, int], data: st.DataObject
    ) -> None:
        world = data.draw(st.sampled_from(self.worlds))
        self.past = [*self.past[-3:], world.fork(world.branch)]
        event, processing = max(world.clock.event, 0) + steps[0], world.clock.processing + steps[1]
        world.advance(event=event, processing=processing)
        (world.run_elsewhere if elsewhere else world.run)(**changes)

    @rule(changes=epochs(), data=st.data())
    def abort_epoch(self, changes: dict[str, list[Change]], data: st.DataObject) -> None:
        world = data.draw(st.sampled_from(self.worlds))
        named = {table.id: changes[table.id.removeprefix("counts.")] for table in EVERY_TABLE}
        handles = world.pre_commit(named)
        self.harness.make().sweep(world.scope(0).epoch, handles[:1])
        self.harness.make().abort(world.scope(0).epoch, handles)
        world.epoch += 1

    @precondition(lambda self: len(self.worlds) < 3)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        world = data.draw(st.sampled_from(self.worlds))
        self.worlds.append(world.fork(f"fork-{len(self.worlds)}"))

    @rule(sizes=st.sampled_from(SIZES), data=st.data())
    def compact(self, sizes: CellSizes, data: st.DataObject) -> None:
        world = data.draw(st.sampled_from(self.worlds))
        if world.chains[COUNTS.id].at is not None:
            world.compact(sizes)

    @rule(parallelism=st.integers(1, 4), data=st.data())
    def rescale(self, parallelism: int, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.worlds)).parallelism = parallelism

    @rule(machine=st.booleans())
    def restart(self, machine: bool) -> None:
        (self.harness.new_machine if machine else self.harness.new_worker)()

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.past)).check()

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.worlds)).check()

    @invariant()
    def files_hold_the_rows(self) -> None:
        for world in getattr(self, "worlds", []):
            for table in EVERY_TABLE:
                rows = merged(self.harness.store, table, world.chains[table.id], range(GROUPS))
                assert _by_key(rows, table.key_schema.names) == world.visible(table)
                groups = rows.column("_kg").to_pylist()
                assert groups == sorted(groups)

    def teardown(self) -> None:
        base_files.LEAST_CHUNK_BYTES = self.least_chunk
        pruning.FEWEST_ROWS, lists.FILE_ROWS = self.fewest_rows, self.file_rows
        for each in heap.lists().values():
            each.wait()
        self.harness.new_worker()
        shutil.rmtree(self.folder)


def _by_key(rows: pa.Table, key: list[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    listed = rows.drop_columns(["_kg"]).to_pylist()
    found = {tuple(row[name] for name in key): row for row in listed}
    assert len(found) == len(listed)
    return found


Lives.TestCase.settings = settings(
    max_examples=settings.default.max_examples * 2 // 5,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLives = Lives.TestCase
