"""Merges of runs over a long life of a state table: cells divide all key groups, runs are few, and little is written
again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.identity import EpochKey
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference
from epochal.snapshots.merge_policy import MOST_RUNS, CellSizes, Merge, MergePlanner, TablePlan, depth, pieces_of

GROUPS = 32
ROW_BYTES = 100
SMALL = CellSizes(whole=500, most=4_000, most_rows=1_000, least=100, merged=3_000, merged_share=8)
numbers = count()


def reference(rows: int) -> FileReference:
    return FileReference(path=str(next(numbers)), sha256="", bytes=rows * ROW_BYTES, rows=rows)


@dataclass
class Life:
    """A state table as sets of keys; a key is in key group ``key % GROUPS``. Files have only names."""

    sizes: CellSizes = SMALL
    columns: str = "0"
    epoch: int = 0
    runs: tuple[BaseFile, ...] = ()
    contents: dict[str, frozenset[int]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    links: list[Link] = field(default_factory=list)
    written: int = 0
    deltas_written: int = 0

    def change(self, keys: Sequence[int], parallelism: int) -> None:
        self.epoch += 1
        deltas = []
        for subtask in range(parallelism):
            mine = [key for key in keys if key % GROUPS % parallelism == subtask]
            if mine:
                file = reference(len(mine))
                self.deltas_written += file.bytes
                deltas.append(DeltaFile(table="t", subtask=subtask, parallelism=parallelism, file=file))
        self.changed |= set(keys)
        self.links.append(Link(EpochKey("main", self.epoch), tuple(deltas)))

    def compact(self, parallelism: int) -> TablePlan:
        at = EpochKey("main", self.epoch)
        chain = Chain(None, self.runs, tuple(self.links))
        plan = MergePlanner(chain, self.columns, False, parallelism, GROUPS, self.sizes).plan()
        self.runs = (*plan.kept, *(run for merge in plan.merges for run in self._written(merge, at)))
        self.changed, self.links = set(), []
        return plan

    def _written(self, merge: Merge, at: EpochKey) -> list[BaseFile]:
        keys = self.changed.union(*(self.contents[run.file.path] for run in merge.inputs))
        found = []
        for groups in merge.outputs:
            mine = frozenset(key for key in keys if key % GROUPS in groups)
            if not mine and merge.age:
                continue
            file = reference(len(mine))
            self.contents[file.path] = mine
            self.written += file.bytes
            found.append(
                BaseFile(
                    table="t",
                    at=at,
                    first_group=groups.start,
                    last_group=groups[-1],
                    step=groups.step,
                    age=merge.age,
                    columns=self.columns,
                    file=file,
                )
            )
        return found

    def cells(self) -> dict[range, list[BaseFile]]:
        found: dict[range, list[BaseFile]] = {}
        for run in sorted(self.runs, key=lambda run: run.age):
            found.setdefault(run.groups, []).append(run)
        return found


steps = st.lists(
    st.tuples(st.sampled_from(["change", "compact", "columns"]), st.integers(1, 5), st.sets(st.integers(0, 2_000))),
    max_size=40,
)


@given(steps=steps)
def test_runs_have_every_key_in_order_of_age(steps: list[tuple[str, int, set[int]]]) -> None:
    life, keys = Life(), set[int]()
    for step, parallelism, changed in steps:
        if step == "columns":
            life.columns = str(parallelism)
        elif step == "change":
            life.change(sorted(changed), parallelism)
            keys |= changed
        elif life.links:
            life.compact(parallelism)
            cells = life.cells()
            assert sorted(group for groups in cells for group in groups) == list(range(GROUPS))
            assert {key for run in life.runs for key in life.contents[run.file.path]} == keys
            assert {run.columns for run in life.runs} == {life.columns}
            for runs in cells.values():
                ages = [run.age for run in runs]
                assert ages[0] == 0 and ages == sorted(set(ages))
                epochs = [run.at.epoch for run in runs]
                assert epochs == sorted(epochs)  # of the files, since the plan does not name runs again here


@given(st.lists(st.integers(1, 1_000), min_size=2, max_size=20))
def test_merged_runs_are_the_newest_and_grow(sizes: list[int]) -> None:
    chosen = depth(sizes)
    assert 0 <= chosen < len(sizes)
    if 0 < chosen < len(sizes) - 1:
        assert all(sizes[place] <= sum(sizes[:place]) for place in range(1, chosen + 1))
    if chosen == 0:
        assert sum(sizes[:-1]) < sizes[-1]


def test_a_changed_row_is_written_again_a_few_times() -> None:
    """Small changes of a large table whose keys are all equally likely, until each cell was rewritten whole."""
    life = Life(CellSizes(whole=0, most=64_000, most_rows=1 << 20, least=100, merged=20_000, merged_share=8))
    life.change(range(20_000), 2)
    life.compact(2)
    oldest = {run.file.path for run in life.runs}
    before, deltas_before, most = life.written, life.deltas_written, 0
    for number in range(400):
        life.change([(number * 7_919 + place * 104_729) % 20_000 for place in range(200)], 2)
        life.compact(2)
        most = max(most, *(len(runs) for runs in life.cells().values()))
    assert not oldest & {run.file.path for run in life.runs}
    deltas = life.deltas_written - deltas_before
    assert (life.written - before + deltas) / deltas <= 10
    assert most <= MOST_RUNS
    assert sum(run.file.bytes for run in life.runs) <= 2.2 * 20_000 * ROW_BYTES


def test_merges_of_one_compaction_are_bounded() -> None:
    life = Life(CellSizes(whole=0, most=20_000, most_rows=1 << 20, least=100, merged=30_000, merged_share=8))
    life.change(range(20_000), 2)
    life.compact(2)
    for number in range(300):
        life.change([(number * 7_919 + place * 104_729) % 20_000 for place in range(200)], 2)
        plan = life.compact(2)
        inputs = [merge.bytes for merge in plan.merges if merge.inputs]
        assert sum(inputs) <= max(30_000, 8 * 200 * ROW_BYTES) + max(inputs, default=0)


def test_cells_have_one_subtask_after_a_rescale() -> None:
    life = Life(CellSizes(whole=0, most=1 << 30, most_rows=1 << 30, least=100, merged=1 << 30))
    life.change(range(5_000), 2)
    life.compact(2)
    assert {run.step for run in life.runs} == {2}
    life.change(range(5_000), 3)
    life.compact(3)
    assert {run.step for run in life.runs} == {6}


def test_a_table_that_shrank_has_few_cells_again() -> None:
    life = Life()
    life.change(range(5_000), 4)
    life.compact(4)
    cells = len(life.cells())
    assert cells > 4
    life.runs = tuple(run.model_copy(update={"file": reference(0)}) for run in life.runs)
    life.contents |= {run.file.path: frozenset() for run in life.runs}
    life.change([1], 4)
    life.compact(4)
    assert len(life.cells()) < cells


@pytest.mark.parametrize(
    ("groups", "bytes", "rows", "parallelism", "pieces"),
    [
        (range(32), 0, 0, 4, 1),  # an empty table is one cell
        (range(32), 399, 3, 4, 1),  # too small for a cell for each subtask
        (range(32), 400, 4, 4, 4),
        (range(32), 33_000, 330, 4, 16),
        (range(32), 4_000, 2_100, 4, 4),
        (range(32), 1 << 40, 1, 5, 20),  # no cell without key group
        (range(1, 32, 2), 10_000, 1, 3, 3),
        (range(1, 32, 2), 10_000, 1, 2, 4),
        (range(7, 8), 1 << 40, 1, 5, 1),
    ],
)
def test_number_of_cells(groups: range, bytes: int, rows: int, parallelism: int, pieces: int) -> None:
    assert pieces_of(groups, bytes, rows, parallelism, SMALL) == pieces
