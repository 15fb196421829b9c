"""Which runs of a state table the next compaction merges: pure decisions over sizes.

The key groups of a table are divided into *cells*, residue classes, each of one subtask. Every compaction folds the
deltas since the last bases into one new run for each cell that they change, and merges some of the cell's newest runs
into it. The sizes of a cell's runs therefore grow geometrically with their age: a row is written again a number of
times that is logarithmic in the size of the state, and a reader opens a few runs for each key group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from epochal.snapshots.chain import Chain
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.merging import runs_for
from epochal.state.keygroups import subtask_of

FAN_IN = 4
"""Number of runs of similar size that are merged into one."""
SHRUNK = 0.25
"""Share of the least size of its cells below which a table is divided again."""
MOST_RUNS = 16
"""Number of runs of a cell from which they are merged whatever the other merges of a compaction write."""


@dataclass(frozen=True)
class CompactionPolicy:
    """Condition for a compaction: the length of a chain since the last bases, in epochs, or the size of its deltas."""

    epochs: int = 50
    bytes: int = 16 << 20

    def is_due(self, chains: Mapping[str, Chain]) -> bool:
        links = max((len(chain.links) for chain in chains.values()), default=0)
        return links >= 2 and (links >= self.epochs or bytes_of_deltas(chains.values()) >= self.bytes)


def depth(sizes: Sequence[float]) -> int:
    """Number of runs to merge with the deltas. ``sizes``: first of the deltas, then of the runs, newest first.

    All are merged when the newer ones together have the size of the oldest.
    """
    if len(sizes) > 1 and sum(sizes[:-1]) >= sizes[-1]:
        return len(sizes) - 1
    together, count = sizes[0], 1
    while count < len(sizes) and sizes[count] <= together:
        together += sizes[count]
        count += 1
    return count - 1 if count >= FAN_IN else 0


@dataclass(frozen=True)
class CellSizes:
    """Sizes of cells, in bytes of files unless said otherwise.

    ``whole``: up to this size, a cell has one run. ``most``, ``most_rows``: when a cell is rewritten whole, it is
    divided into cells of at most this size. ``least``: the minimum size of cells of one subtask each; a smaller table
    is one cell, which all subtasks read. ``merged``, ``merged_share``: what a compaction merges beside the deltas, at
    least and as a multiple of the deltas' size; further merges are left to later compactions. ``depth``: which runs of
    a larger cell are merged; any rule gives the same rows.
    """

    whole: int = 1 << 20
    most: int = 64 << 20
    most_rows: int = 1 << 20
    least: int = 64 << 10
    merged: int = 64 << 20
    merged_share: int = 8
    depth: Callable[[Sequence[float]], int] = depth


CELL_SIZES = CellSizes()


@dataclass(frozen=True)
class Merge:
    """A new run of the key groups ``groups`` from the deltas and from ``inputs``, oldest first.

    ``age``: that of the new run. With age 0 no older run lies below: deleted and expired rows are left out. ``pieces``:
    the run is written as this number of runs, which are cells of their own.
    """

    groups: range
    inputs: tuple[BaseFile, ...] = ()
    age: int = 0
    pieces: int = 1

    @property
    def outputs(self) -> tuple[range, ...]:
        return divided(self.groups, self.pieces)

    @property
    def bytes(self) -> int:
        return sum(run.file.bytes for run in self.inputs)


@dataclass(frozen=True)
class TablePlan:
    """Compaction of one state table: the runs that are named again, and the merges."""

    kept: tuple[BaseFile, ...]
    merges: tuple[Merge, ...]


def bytes_of_deltas(chains: Iterable[Chain]) -> int:
    """Total size of all deltas since the last bases."""
    return sum(delta.file.bytes for chain in chains for link in chain.links for delta in link.deltas)


def bytes_of_bases(chains: Iterable[Chain]) -> int:
    return sum(base.file.bytes for chain in chains for base in chain.bases)


def bytes_of(chains: Iterable[Chain]) -> int:
    """Total size of the runs and deltas."""
    chains = tuple(chains)
    return bytes_of_bases(chains) + bytes_of_deltas(chains)


def rows_of(chain: Chain) -> int:
    """Upper bound of the table's rows: rows of its runs plus all later changes."""
    deltas = sum(delta.file.rows for link in chain.links for delta in link.deltas)
    return deltas + sum(base.file.rows for base in chain.bases)


def divided(groups: range, pieces: int) -> tuple[range, ...]:
    """Key groups as ``pieces`` disjoint ranges with ``pieces`` times the step."""
    return tuple(groups[first::pieces] for first in range(pieces))


def pieces_of(groups: range, bytes: int, rows: int, parallelism: int, sizes: CellSizes = CELL_SIZES) -> int:
    """Number of cells for key groups with this content: of one subtask each, and of limited size."""
    pieces = min(math.lcm(groups.step, parallelism) // groups.step, len(groups))
    if bytes < pieces * sizes.least:
        pieces = 1
    while 2 * pieces <= len(groups) and max(bytes / sizes.most, rows / sizes.most_rows) > pieces:
        pieces *= 2
    return pieces


@dataclass(frozen=True)
class Cell:
    """The runs of some key groups, oldest first, and the size of the deltas that change them."""

    groups: range
    runs: tuple[BaseFile, ...]
    changed: float

    @property
    def bytes(self) -> float:
        return self.changed + sum(run.file.bytes for run in self.runs)

    @property
    def rows(self) -> int:
        return max(run.file.rows for run in self.runs)

    @property
    def sizes(self) -> list[float]:
        """Sizes of the deltas, then of the runs, newest first."""
        return [self.changed, *(float(run.file.bytes) for run in reversed(self.runs))]


@dataclass(frozen=True)
class MergePlanner:
    """Plans the compaction of one state table. ``columns``: :func:`base_files.columns_of` its present declaration.
    ``expires``: rows expire."""

    chain: Chain
    columns: str
    expires: bool
    parallelism: int
    max_parallelism: int
    sizes: CellSizes = field(default=CELL_SIZES)

    def plan(self) -> TablePlan:
        """Every key group is in the runs of exactly one cell afterwards, also if it has no rows."""
        cells = self._cells()
        if cells is None or self._too_fine(cells):
            return TablePlan((), tuple(self._afresh()))
        due = {cell.groups: self._depth_of(cell) for cell in cells}
        merges = [self._merge(cell, due[cell.groups]) for cell in self._within_budget(cells, due)]
        merged = {merge.groups: merge for merge in merges}
        kept: list[BaseFile] = []
        for cell in cells:
            merge = merged.get(cell.groups)
            if merge is None and cell.changed:
                merge = Merge(cell.groups, (), cell.runs[-1].age + 1)
                merges.append(merge)
            kept += cell.runs if merge is None else cell.runs[: len(cell.runs) - len(merge.inputs)]
        return TablePlan(tuple(kept), tuple(merges))

    def _cells(self) -> list[Cell] | None:
        """The present cells; ``None`` if the runs do not divide all key groups into cells."""
        by_groups: dict[range, list[BaseFile]] = {}
        for run in self.chain.bases:
            by_groups.setdefault(run.groups, []).append(run)
        if sorted(group for groups in by_groups for group in groups) != list(range(self.max_parallelism)):
            return None
        changed = self._changed
        return [
            Cell(groups, tuple(runs), float(changed[list(groups)].sum()))
            for groups, runs in sorted(by_groups.items(), key=lambda item: item[0].start)
        ]

    def _too_fine(self, cells: Sequence[Cell]) -> bool:
        """True if the table has shrunk, so that its cells are much smaller than the least size."""
        return len(cells) > 1 and sum(cell.bytes for cell in cells) < SHRUNK * len(cells) * self.sizes.least

    def _afresh(self) -> Iterator[Merge]:
        """All rows, in new cells."""
        every = range(self.max_parallelism)
        size, rows = bytes_of([self.chain]), rows_of(self.chain)
        for groups in divided(every, pieces_of(every, size, rows, self.parallelism, self.sizes)):
            yield Merge(groups, tuple(runs_for(self.chain.bases, groups)))

    def _depth_of(self, cell: Cell) -> int:
        """Number of runs of a cell to merge with its deltas."""
        if self._is_outdated(cell):
            return len(cell.runs)
        if cell.bytes <= self.sizes.whole and (cell.changed or self.expires or len(cell.runs) > 1):
            return len(cell.runs)
        return self.sizes.depth(cell.sizes) if cell.changed else 0

    def _within_budget(self, cells: Sequence[Cell], due: Mapping[range, int]) -> Iterator[Cell]:
        """Cells to merge now: those that must be merged or are small, then those with the most runs."""
        budget = max(self.sizes.merged, self.sizes.merged_share * sum(cell.changed for cell in cells))
        first = True
        for cell in sorted((cell for cell in cells if due[cell.groups]), key=lambda cell: -len(cell.runs)):
            cost = sum(run.file.bytes for run in cell.runs[-due[cell.groups] :])
            must = self._is_outdated(cell) or cost <= self.sizes.whole or len(cell.runs) >= MOST_RUNS
            if first or must or cost <= budget:
                budget -= cost
                first = False
                yield cell

    def _is_outdated(self, cell: Cell) -> bool:
        """True if the table has other columns than some of the cell's runs."""
        return any(run.columns != self.columns for run in cell.runs)

    def _merge(self, cell: Cell, depth: int) -> Merge:
        inputs = cell.runs[-depth:]
        if depth < len(cell.runs):
            return Merge(cell.groups, inputs, inputs[0].age)
        pieces = pieces_of(cell.groups, int(cell.bytes), cell.rows, self.parallelism, self.sizes)
        return Merge(cell.groups, inputs, 0, pieces)

    @property
    def _changed(self) -> npt.NDArray[np.float64]:
        """Size of the deltas by key group, if the rows of each delta are spread evenly."""
        sizes: dict[int, npt.NDArray[np.float64]] = {}
        for link in self.chain.links:
            for delta in link.deltas:
                of_subtasks = sizes.setdefault(delta.parallelism, np.zeros(delta.parallelism))
                of_subtasks[delta.subtask] += delta.file.bytes
        every = np.arange(self.max_parallelism, dtype=np.int32)
        changed = np.zeros(self.max_parallelism)
        for parallelism, of_subtasks in sizes.items():
            owners = subtask_of(every, parallelism)
            groups = np.bincount(owners, minlength=parallelism)
            changed += (of_subtasks / np.maximum(groups, 1))[owners]
        return changed
