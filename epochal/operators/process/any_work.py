"""``process_any``: the author's function once per subtask and epoch, over a stream of rows, with separate state per
subtask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.state import StateView
from epochal.declarations.state import ListAccess, bind, declared_states
from epochal.declarations.unkeyed import UnkeyedProcess
from epochal.operators.process.author_object import author_object, read_only
from epochal.operators.process.contexts import context_of
from epochal.operators.process.output_rows import OutputRows, given_in_parts
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import groups_of, subtask_of
from epochal.state.table import StateTable
from epochal.tasks.keys import CHUNK_ROWS, named_rows
from epochal.tasks.operator import Ownership, Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.state_values import Fields, value_column
from epochal.tasks.task_output import OutputBatch
from epochal.tasks.values import column_of, python_values


@dataclass(frozen=True)
class ProcessAnyWork:
    """The work of ``process_any``: the author's function, once per subtask and epoch, over rows that stream.

    ``columns``: the names of a row's columns, in the author's order. Raises ``AuthorError`` for errors of the author's
    code, and ``SchemaError`` for values that do not fit the output or a state.
    """

    process: type[UnkeyedProcess]
    columns: tuple[str, ...]
    chunk_rows: int = CHUNK_ROWS
    """The number of rows, of the input and of the output, that are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        author, states = self._author(subtask)
        context = context_of(subtask)
        output = OutputRows(subtask.operator, subtask.output, subtask.sides)
        named = self._named(rows)
        where = f"Operator {subtask.operator!r}"
        with AuthorCall(lambda: f"{where}, subtask {subtask.subtask}"), read_only(author, where):
            for part in given_in_parts(author.process(named, context), self.chunk_rows):
                output.add(part)
                yield from output.take()
        for _ in named:
            """Read the rows that the author's function has not read, as every row must be read."""
        for state in states:
            changes = state.changes()
            if changes is not None:
                subtask.transaction.stage(state.table.id, changes)

    def _author(self, subtask: Subtask) -> tuple[UnkeyedProcess, list[SubtaskList]]:
        tables = {table.id: table for table in subtask.tables}
        states = {}
        for name in declared_states(self.process):
            table = tables[f"{subtask.operator}.{name}"]
            states[name] = SubtaskList(table, subtask.transaction.view(table.id), subtask.ownership)
        author = author_object(subtask.operator, self.process)
        bind(author, states)
        return author, list(states.values())

    def _named(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        for batch in rows:
            for first in range(0, batch.num_rows, self.chunk_rows):
                yield from named_rows("Row", batch.slice(first, self.chunk_rows), self.columns)


@dataclass(frozen=True, eq=False)
class _Stored:
    """The elements at the parent epoch, in the list's order: by index, and for equal indices by key group."""

    groups: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int64]
    owned: npt.NDArray[np.bool_]
    values: pa.Table

    @cached_property
    def next_index(self) -> int:
        return int(self.indices.max(initial=-1)) + 1


class SubtaskList(ListAccess):
    """The list of one subtask in one epoch: state of operator or union scope (thesis 4.2).

    With union scope, all subtasks read the elements, and only this subtask changes its own. The address of an element
    is (``_group``, ``_index``). A subtask spreads its elements over its key groups, so that they are redistributed
    round-robin when key groups move. New elements have indices above those of all elements read, so that a list keeps
    its order; a rescaling interleaves the lists that it combines.
    """

    def __init__(self, table: StateTable, view: StateView, ownership: Ownership) -> None:
        self.table = table
        self._view = view
        self._ownership = ownership
        self._fields = Fields(table.id, table.value)
        self._added: list[Any] = []
        self._cleared = False

    def get(self) -> list[Any]:
        if self._cleared:
            return [*self._values(~self._stored.owned), *map(self._fields.copied, self._added)]
        return [*map(self._fields.copied, self._elements), *map(self._fields.copied, self._added)]

    def own(self) -> list[Any]:
        kept = [] if self._cleared else self._values(self._stored.owned)
        return [*kept, *map(self._fields.copied, self._added)]

    def append(self, *values: Any, **columns: Any) -> None:
        self._added.append(self._fields.value(values, columns))

    def extend(self, elements: Iterable[Any]) -> None:
        self._added += [self._fields.one(element) for element in elements]

    def clear(self) -> None:
        self._cleared, self._added = True, []

    def __len__(self) -> int:
        stored = self._stored
        return len(self._added) + (int((~stored.owned).sum()) if self._cleared else len(stored.owned))

    def changes(self) -> pa.Table | None:
        """The changes of the epoch, with ``StateTable.delta_schema``, one row per element; ``None`` if there are
        none."""
        if not self._added and not self._cleared:
            return None
        stored = self._stored
        own = np.fromiter(
            groups_of(self._ownership.subtask, self._ownership.parallelism, self._ownership.max_parallelism), np.int32
        )
        first = 0 if self._cleared else stored.next_index
        indices = np.arange(first, first + len(self._added), dtype=np.int64)
        groups = own[indices % len(own)]
        gone = stored.owned & ~_among(stored, groups, indices) if self._cleared else np.zeros(len(stored.owned), bool)
        groups = np.concatenate([groups, stored.groups[gone]])
        indices = np.concatenate([indices, stored.indices[gone]])
        if not len(groups):
            return None
        deleted = np.arange(len(groups)) >= len(self._added)
        operations = pa.array(np.where(deleted, "delete", "put").tolist(), pa.string())
        arrays = [pa.array(groups), operations, pa.array(groups), pa.array(indices)]
        columns = self._fields.columns([*self._added, *[None] * int(gone.sum())])
        for values, field in zip(columns, self.table.value_schema, strict=True):
            arrays.append(value_column(self.table, field, values, lambda row: ""))
        return pa.Table.from_arrays(arrays, schema=self.table.delta_schema)

    @cached_property
    def _stored(self) -> _Stored:
        scope, ownership = self.table.scope, self._ownership
        read = np.fromiter(
            scope.groups_read(ownership.subtask, ownership.parallelism, ownership.max_parallelism), np.int32
        )
        open_bound = pa.nulls(len(read), pa.binary())
        rows = self._view.ranges(read, open_bound, open_bound)
        address = KeyCodec(self.table.key_schema).decode(rows.keys)
        places = pa.table({"index": address.column(1), "group": address.column(0)})
        order = pc.sort_indices(places, sort_keys=[("index", "ascending"), ("group", "ascending")])
        places = places.take(order)
        groups = column_of(places, "group").to_numpy()
        owned = subtask_of(groups, ownership.parallelism) == ownership.subtask
        return _Stored(groups, column_of(places, "index").to_numpy(), owned, rows.values.take(order))

    @cached_property
    def _elements(self) -> list[Any]:
        """All stored elements as Python values, created at the author's first read."""
        values = self._stored.values
        if self._fields.single:
            return python_values(column_of(values, self._fields.names[0]))
        return named_rows("Value", values, self._fields.names)

    def _values(self, chosen: npt.NDArray[np.bool_]) -> list[Any]:
        return [self._fields.copied(self._elements[position]) for position in np.flatnonzero(chosen).tolist()]


def _among(stored: _Stored, groups: npt.NDArray[np.int32], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """A mask of the stored elements with one of these addresses, whose indices start at 0."""
    written = np.full(int(max(stored.indices.max(initial=-1), len(indices) - 1)) + 1, -1, np.int32)
    written[indices] = groups
    found: npt.NDArray[np.bool_] = written[stored.indices] == stored.groups
    return found
