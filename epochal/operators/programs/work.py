"""A stage of a program: all task elements of one state element, or one that has no state, as one operator.

The stages of a program are a chain. Each reads the calls of the entries that begin in it and one stream from the stage
before, in which rows for it, rows for stages further on, and answers come together; what is not for it, it hands on.
So an epoch of a program is one Spark job, with one shuffle for each stage.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.programs.calls import Arrived, FedEntry, Ordered, ServedEntry, chunks, sent
from epochal.operators.programs.counters import added
from epochal.operators.programs.ports import Ports
from epochal.operators.programs.stage_output import Destination, StageOutput
from epochal.programs.dataflow import Edge, Stage
from epochal.programs.declaration import StateElement
from epochal.programs.execution import Executable
from epochal.programs.state import Key, State
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import delta_rows, gathered
from epochal.tasks.subtask_rows import INPUT, KEY_GROUP, TO, InputColumns
from epochal.tasks.values import column_of

Fed = tuple[FedEntry | ServedEntry, ...]
"""The entries whose calls come as one stream."""


@lru_cache(maxsize=16)
def _executable(code: bytes) -> Executable:
    """The unpickled task elements, cached for the next epochs of this worker process."""
    return cast(Executable, pickle.loads(code))


@dataclass(frozen=True, eq=False)
class ProgramWork:
    """The work of a stage. ``arriving``: the edges into the stage; ``leaving``: the destinations of its output edges;
    ``keys``: the names of the key values of state accesses; ``columns``: those of each input."""

    code: bytes
    ports: Ports
    stage: Stage
    arriving: Mapping[int, Edge]
    leaving: Mapping[int, Destination]
    entries: Mapping[str, int]
    """By entry, the number of the edge of its calls."""
    fed: tuple[Fed, ...]
    columns: tuple[InputColumns, ...]
    keys: Mapping[tuple[int, str | None], str]
    element: StateElement | None
    read: frozenset[str]
    """The entries whose answers are read."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived, passing = self._arrived(gathered(rows))
        if passing is not None and subtask.subtask != 0:
            passing = passing.filter(pc.greater_equal(passing[TO], 0))  # every subtask has received the rows to all
        if passing is not None and passing.num_rows:
            yield from _in_columns(passing, subtask.output).to_batches()
        if self.element is not None and added(self.element, subtask.tables[0], subtask, arrived):
            return
        for chunk in chunks(arrived):
            yield from self._run(subtask, chunk)

    def _run(self, subtask: Subtask, chunk: Ordered) -> Iterator[pa.RecordBatch]:
        program, state = _executable(self.code), None
        if self.element is not None:
            (table,) = subtask.tables
            state = LoadedState(self.element, table, subtask)
            if table.scope.has_key:
                state.load([part.key(self.keys[place]) for part in chunk.parts if (place := part.place) in self.keys])
            else:
                state.load_instance()
        output = StageOutput(
            self.ports, subtask.output, self.leaving, self.read, chunk, subtask.subtask, subtask.max_parallelism
        )
        held = None if state is None else state.state
        if program.gathers(self.stage):
            program.gather(chunk.arrivals(), held, output, subtask.ownership.parallelism)
        else:
            program.serve([(part.edge, part.method) for part in chunk.parts], chunk.rows(), held, output)
        if state is not None:
            state.stage()
        yield from output.batches()

    def _arrived(self, rows: pa.Table) -> tuple[list[Arrived], pa.Table | None]:
        """The rows for this stage, and those to pass on."""
        arrived, passing = [], None
        inputs: list[Fed | None] = [*self.fed, *([None] if len(self.columns) > len(self.fed) else [])]
        for number, (fed, columns) in enumerate(zip(inputs, self.columns, strict=True)):
            own = rows
            if len(inputs) > 1:
                own = columns.own(rows.filter(pc.equal(column_of(rows, INPUT), number)), KEY_GROUP)
            if fed is not None:
                for entry in fed:
                    arrived += entry.of(own, self.arriving[self.entries[entry.name]])
            else:
                sent_here, passing = sent(self.ports, self.arriving, own)
                arrived += sent_here
        return arrived, passing


def _in_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of the previous stage with the columns of this stage, which may be more."""
    there = set(rows.column_names)
    columns = [
        rows[each.name].cast(each.type) if each.name in there else pa.nulls(rows.num_rows, each.type) for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


class LoadedState:
    """The loaded elements of some keys of partitioned state, or of an instance of partial state, and their changes."""

    def __init__(self, element: StateElement, table: StateTable, subtask: Subtask) -> None:
        self.state: State = element.make()
        self._element, self._table, self._subtask = element, table, subtask
        self._access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
        self._loaded: list[Key] = []
        self._instance: tuple[int, ...] = () if table.scope.has_key else (subtask.subtask,)

    def load(self, keys: Sequence[pa.Array]) -> None:
        """Load the elements of all of these keys in one look-up. Keys may occur twice; nulls are ignored."""
        field = self._table.owner_schema.field(0)
        chunks = [
            chunk for array in keys for chunk in (array.chunks if isinstance(array, pa.ChunkedArray) else [array])
        ]
        distinct = pc.unique(pa.chunked_array(chunks, field.type)).drop_null()
        if not len(distinct):
            return
        asked = pa.table([distinct], schema=self._table.owner_schema)
        if self._table.sub_key:
            entries = self._access.entries(asked)
            *sub_keys, values = (column.to_pylist() for column in entries.rows.columns)
            owners = [] if self._instance else [distinct.take(pa.array(entries.owner)).to_pylist()]
            self._loaded = list(zip(*owners, *sub_keys, strict=True))
        else:
            found, rows = self._access.get(asked)
            present = pa.array(found)
            self._loaded = [(key,) for key in distinct.filter(present).to_pylist()]
            values = rows.column(0).filter(present).to_pylist()
        from_row = self._element.model.from_row
        self.state.load(zip(self._loaded, map(from_row, values), strict=True))

    def load_instance(self) -> None:
        """Load the subtask's instance of partial state."""
        self.load([pa.array(self._instance, self._table.owner_schema.field(0).type)])

    def stage(self) -> None:
        """Stage the changed elements."""
        puts, deletes = self._changes()
        for operation, rows in (("put", puts), ("delete", deletes)):
            if rows:
                self._subtask.transaction.stage(self._table.id, self._delta(operation, rows))

    def _changes(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        puts, gone = [], []
        to_row = self._element.model.to_row
        for key, value in self.state.changes():
            if value is None:
                gone.append(key)
            else:
                puts.append((*key, to_row(value)))
        there = set(self._loaded) if gone else set()
        width = len(self._table.full_key) - len(self._instance)
        return sorted(puts, key=lambda row: row[:width]), sorted(key for key in gone if key in there)

    def _delta(self, operation: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        fields = [*self._table.key_schema, *self._table.value_schema]
        columns = [[number] * len(rows) for number in self._instance] + list(zip(*rows, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=False)]
        keys = pa.Table.from_arrays(arrays[: len(self._table.key_schema)], schema=self._table.key_schema)
        groups = self._table.key_groups(keys, self._subtask.max_parallelism)
        return delta_rows(self._table, groups, operation, arrays)
