"""The subtasks that a Spark task serves, and the rows of each.

One mark row per subtask is shuffled with the rows (docs/architecture.md). It makes the task serve that subtask, with or
without rows. Spark may assign several subtasks to one task. Rows of several inputs are united for one shuffle; here
they are separated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import HandlesIncomplete

MARK, SUBTASK, KEY_GROUP, INPUT = "_mark", "_subtask", "_kg", "_input"
UNMARKED = -2042419109
"""``_mark`` of data rows that Spark groups by it: the one int whose hash is the seed of Spark's hashes. The hash of
this value and a key equals the key's hash. Rows that are not grouped by ``_mark`` have null."""
TO = "_to"
"""The key group that a row goes to, where its producer sets one; -1: the row goes to every subtask."""
_DEFECT = "This is a defect of Epochal, not of the pipeline: report it with the pipeline's graph."
Call = tuple[int, Iterator[pa.RecordBatch]]
"""A subtask and its rows; the rows must be read to their end before the next call is taken."""


@dataclass(frozen=True)
class CallReader:
    """Splits the batches of a task by subtask. Raises ``HandlesIncomplete``, naming the operator."""

    operator: str

    def in_order(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Call]:
        """Split batches that are sorted by (subtask, marks first, ..); rows stream."""
        pieces = self._pieces(batches)
        piece = next(pieces, None)
        served: set[int] = set()

        def rows_of(subtask: int) -> Iterator[pa.RecordBatch]:
            nonlocal piece
            while piece is not None and not piece.mark and piece.subtask == subtask:
                yield piece.rows
                piece = next(pieces, None)

        while piece is not None:
            subtask = piece.subtask
            if not piece.mark:
                raise self._unmarked(subtask)
            if subtask in served:
                raise self._marked_twice(subtask)
            served.add(subtask)
            piece = next(pieces, None)
            yield subtask, rows_of(subtask)

    def gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Call]:
        """Split batches in any order; all are read first. A subtask without rows has one empty batch, for its
        columns."""
        rows: dict[int, list[pa.RecordBatch]] = {}
        marks: list[int] = []
        empty: list[pa.RecordBatch] = []
        for batch in batches:
            empty = [batch.slice(0, 0)]
            marked = np.flatnonzero(_is_mark(batch))
            marks += batch.column(SUBTASK).take(pa.array(marked)).to_pylist()
            for real in _between(batch, marked.tolist()):
                for subtask, mine in _by_subtask(real):
                    rows.setdefault(subtask, []).append(mine)
        for subtask in rows.keys() - set(marks):
            raise self._unmarked(subtask)
        if len(set(marks)) < len(marks):
            raise self._marked_twice(max(marks, key=marks.count))
        for subtask in sorted(marks):
            yield subtask, iter(rows.pop(subtask, empty))

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Piece]:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            marks = _is_mark(batch)
            subtasks = batch.column(SUBTASK).to_numpy(zero_copy_only=False)
            # A mark is a separate piece; rows are cut where the subtask changes.
            cuts = np.flatnonzero((subtasks[1:] != subtasks[:-1]) | marks[1:] | marks[:-1]) + 1
            for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), batch.num_rows], strict=True):
                rows = batch.slice(first, end - first)
                mark = bool(marks[first])
                yield _Piece(int(subtasks[first]), mark, rows)

    def _unmarked(self, subtask: int) -> HandlesIncomplete:
        return HandlesIncomplete(
            f"Operator {self.operator!r}: a task received rows of subtask {subtask} without its mark, so that they "
            f"would not be committed. {_DEFECT}"
        )

    def _marked_twice(self, subtask: int) -> HandlesIncomplete:
        return HandlesIncomplete(
            f"Operator {self.operator!r}: one task received the mark of subtask {subtask} twice. {_DEFECT}"
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    subtask: int
    mark: bool
    rows: pa.RecordBatch


def _is_mark(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    numbers = batch.column(MARK).fill_null(UNMARKED).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.bool_] = numbers != UNMARKED
    return found


def _between(batch: pa.RecordBatch, marks: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows before, between and after the few marks; without copies."""
    for first, end in zip([0, *(mark + 1 for mark in marks)], [*marks, batch.num_rows], strict=True):
        if first < end:
            yield batch.slice(first, end - first)


def _by_subtask(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each subtask. There is at least one row, and nearly always only one subtask."""
    column = rows.column(SUBTASK)
    subtasks = pc.unique(column).to_pylist()
    for subtask in subtasks:
        yield subtask, rows if len(subtasks) == 1 else rows.filter(pc.equal(column, subtask))


def carried_name(number: int, name: str) -> str:
    """The name that column ``name`` of input ``number`` has among the united columns."""
    return f"_{number}_{name}"


@dataclass(frozen=True)
class InputColumns:
    """The columns of one of several inputs: their ``names``, in the author's order, and their united names,
    ``carried``."""

    names: tuple[str, ...]
    carried: tuple[str, ...]

    @classmethod
    def of(cls, number: int, names: Sequence[str], keys: Sequence[str] = (), key: Sequence[str] = ()) -> InputColumns:
        """``keys``: the columns that distribute the input; ``key``: the operator's names for them."""
        keyed = dict(zip((name.casefold() for name in keys), key, strict=True))
        return cls(tuple(names), tuple(keyed.get(name.casefold(), carried_name(number, name)) for name in names))

    def own(self, rows: pa.RecordBatch, *beside: str) -> pa.RecordBatch:
        """This input's columns of united rows under their original names, and the columns ``beside``."""
        return rows.select([*self.carried, *beside]).rename_columns([*self.names, *beside])


def by_input(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Consecutive united rows of the same input, with the input's number."""
    for batch in batches:
        if not batch.num_rows:
            continue
        numbers = batch.column(INPUT).to_numpy(zero_copy_only=False)
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), batch.num_rows]
        for first, end in pairwise(bounds):
            yield int(numbers[first]), batch.slice(first, end - first)
