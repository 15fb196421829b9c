"""The input rows of a stage of a program, calls and rows of other stages, in the order of the calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.programs.ports import ERROR, INDEX, INSTANCE, PORT, SEQUENCE, Ports
from epochal.programs.dataflow import Dispatch, Edge
from epochal.programs.rows import Arrival, Failed
from epochal.state.key_codec import KeyCodec
from epochal.tasks.keys import CHUNK_ROWS
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of

Numbers = npt.NDArray[np.int64]
KEY, TIE, KEPT, ENTRY = "_key", "_tie", "_kept_", "_entry"
"""Columns of a call: the distribution key; a hash of the whole call; the prefix of columns that are returned with the
answer; the number of its entry, in a stream of calls of several entries."""
SERVED_KEPT = (f"{KEPT}request_id", f"{KEPT}sequence")
"""The columns of a call from outside that are returned with its answer."""
_OF_STREAMS, _OF_CALLERS = 0, 1


def argument_name(number: int) -> str:
    return f"_argument_{number}"


def order_name(number: int) -> str:
    return f"_order_{number}"


def kept_name(entry: int, number: int) -> str:
    return f"{KEPT}{entry}_{number}"


@dataclass(frozen=True)
class FedEntry:
    """An entry whose calls are the rows of a stream. ``number``: its number in the program; ``order``: the number of
    ``order_by`` columns; ``kept``: the number of columns that are returned with the answer."""

    name: str
    number: int
    order: int
    kept: int

    @property
    def kept_names(self) -> tuple[str, ...]:
        return tuple(kept_name(self.number, each) for each in range(self.kept))

    def of(self, rows: pa.Table, edge: Edge) -> list[Arrived]:
        """The calls of the entry. Equal calls have different sequences."""
        arguments = [argument_name(number) for number in range(len(edge.fields))]
        return [_called(self.name, edge, rows, _told_apart(self._prefix(rows)), arguments, self.kept_names)]

    def _prefix(self, rows: pa.Table) -> pa.BinaryArray:
        """The prefix of the sequence of each row, which is equal for equal calls."""
        order = [column_of(rows, order_name(number)) for number in range(self.order)]
        number = pa.repeat(pa.scalar(self.number, pa.int32()), rows.num_rows)
        return _encoded(_OF_STREAMS, *order, number, column_of(rows, TIE))


@dataclass(frozen=True)
class ServedEntry:
    """An entry that is called from outside. ``arguments``: their columns in the stream of calls of several entries, in
    which ``_entry`` is the number of the entry."""

    name: str
    number: int
    arguments: tuple[str, ...]

    def of(self, rows: pa.Table, edge: Edge) -> list[Arrived]:
        own = rows.filter(pc.equal(column_of(rows, ENTRY), self.number))
        if not own.num_rows:
            return []
        # Calls from outside are numbered, and follow those of streams.
        sequence = _encoded(_OF_CALLERS, column_of(own, SERVED_KEPT[1]))
        return [_called(self.name, edge, own, sequence, self.arguments, SERVED_KEPT)]


@dataclass(frozen=True, eq=False)
class Arrived:
    """The rows of one edge, as columns. ``names``: names of the values; ``method``: the write method of a fan-out."""

    edge: Edge
    entry: str
    method: str | None
    names: tuple[str, ...]
    sequence: pa.BinaryArray
    index: Numbers
    instance: Numbers
    group: Numbers
    values: tuple[pa.Array, ...]
    kept: Mapping[str, pa.Array]
    errors: pa.Array | None = None
    """The errors of instances, for gathered rows."""

    def __len__(self) -> int:
        return len(self.sequence)

    def filter(self, mask: npt.NDArray[np.bool_]) -> Arrived:
        chosen = pa.array(mask)
        return replace(
            self,
            sequence=self.sequence.filter(chosen),
            index=self.index[mask],
            instance=self.instance[mask],
            group=self.group[mask],
            values=tuple(column.filter(chosen) for column in self.values),
            kept={name: column.filter(chosen) for name, column in self.kept.items()},
            errors=None if self.errors is None else self.errors.filter(chosen),
        )

    @property
    def place(self) -> tuple[int, str | None]:
        """The edge and the method, which determine the key value of the state access."""
        return self.edge.number, self.method

    def key(self, name: str) -> pa.Array:
        """The keys of the state accesses of the rows: the value with this name, or the constant that it spells."""
        if name in self.names:
            return self.values[self.names.index(name)]
        return pa.array([ast.literal_eval(name)])

    def rows(self) -> Sequence[tuple[Any, ...] | Failed]:
        """The values of each row as Python values, or its failure."""
        if self.errors is None or self.errors.null_count == len(self):
            return self._rows()
        return [
            row if error is None else Failed(*error.split(": ", 1))
            for row, error in zip(self._rows(), self.errors.to_pylist(), strict=True)
        ]

    def _rows(self) -> list[tuple[Any, ...]]:
        columns = [column.to_pylist() for column in self.values]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self)


def _called(
    entry: str, edge: Edge, rows: pa.Table, sequence: pa.BinaryArray, arguments: Sequence[str], kept: Sequence[str]
) -> Arrived:
    count = rows.num_rows
    return Arrived(
        edge,
        entry,
        None,
        tuple(field.name for field in edge.fields),
        sequence,
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        _groups(rows),
        tuple(column_of(rows, name) for name in arguments),
        {name: column_of(rows, name) for name in kept},
    )


def _encoded(rank: int, *columns: pa.Array) -> pa.BinaryArray:
    """The columns encoded as bytes in their order, after ``rank``."""
    arrays = [pa.repeat(pa.scalar(rank, pa.int8()), len(columns[0])), *columns]
    table = pa.Table.from_arrays(arrays, [str(position) for position in range(len(arrays))])
    return KeyCodec(table.schema).encode_array(table)


def _told_apart(prefix: pa.BinaryArray) -> pa.BinaryArray:
    ordinals = np.zeros(len(prefix), ">u4")
    if pc.count_distinct(prefix).as_py() < len(prefix):
        order = pc.sort_indices(prefix)
        begins = _changes(prefix.take(order))
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(prefix)), 0))
        ordinals[order.to_numpy()] = np.arange(len(prefix)) - starts
    suffix = pa.Array.from_buffers(pa.binary(4), len(prefix), [None, pa.py_buffer(ordinals.tobytes())])
    return pc.binary_join_element_wise(prefix, suffix.cast(pa.binary()), pa.scalar(b"", pa.binary()))


def _changes(in_order: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """A mask of the values that differ from the previous one."""
    begins = np.ones(len(in_order), bool)
    if len(in_order) > 1:
        begins[1:] = pc.not_equal(in_order.slice(1), in_order.slice(0, len(in_order) - 1)).to_numpy(
            zero_copy_only=False
        )
    return begins


def _groups(rows: pa.Table) -> Numbers:
    groups: Numbers = column_of(rows, KEY_GROUP).fill_null(-1).to_numpy().astype(np.int64)
    return groups


def sent(ports: Ports, edges: Mapping[int, Edge], rows: pa.Table) -> tuple[list[Arrived], pa.Table]:
    """The rows of other stages that belong to these edges, and all other rows."""
    numbers = column_of(rows, PORT).to_numpy(zero_copy_only=False)
    left = np.ones(len(numbers), bool)
    found = []
    for number in np.unique(numbers).tolist():
        port = ports.all[number]
        if port.edge is None or port.edge.number not in edges:
            continue
        mine = numbers == number
        left &= ~mine
        own = rows.filter(pa.array(mine))
        found.append(
            Arrived(
                port.edge,
                port.entry,
                port.method,
                port.names,
                column_of(own, SEQUENCE),
                column_of(own, INDEX).to_numpy().astype(np.int64),
                column_of(own, INSTANCE).to_numpy().astype(np.int64),
                _groups(own),
                tuple(column_of(own, name) for name in port.columns),
                {name: column_of(own, name) for name in own.column_names if name.startswith(KEPT)},
                column_of(own, ERROR) if port.edge.dispatch is Dispatch.GATHER else None,
            )
        )
    return found, rows if left.all() else rows.filter(pa.array(left))


@dataclass(frozen=True, eq=False)
class Ordered:
    """Rows of a stage in the order of calls. ``order``: positions in the concatenated rows of ``parts``; ``calls[i]``:
    the number of the call of row i of ``order``, ascending from 0."""

    parts: tuple[Arrived, ...]
    order: Numbers
    calls: Numbers

    @classmethod
    def of(cls, parts: Sequence[Arrived]) -> Ordered:
        kept = tuple(part for part in parts if len(part))
        sequence = pa.concat_arrays([part.sequence for part in kept])
        columns = {
            SEQUENCE: sequence,
            INDEX: np.concatenate([part.index for part in kept]),
            INSTANCE: np.concatenate([part.instance for part in kept]),
        }
        order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
        calls = np.cumsum(_changes(sequence.take(order))) - 1
        return cls(kept, order.to_numpy().astype(np.int64), calls)

    def rows(self) -> Iterator[tuple[int, int, Any]]:
        """The number of the part, the number of the call, and the values of each row."""
        rows = [row for part in self.parts for row in part.rows()]
        lengths = list(map(len, self.parts))
        parts = np.repeat(np.arange(len(lengths)), lengths)[self.order].tolist()
        return zip(parts, self.calls.tolist(), map(rows.__getitem__, self.order.tolist()), strict=True)

    def arrivals(self) -> Iterator[Arrival]:
        """The rows, with the number of the call as their sequence."""
        index = np.concatenate([part.index for part in self.parts])[self.order].tolist()
        instance = np.concatenate([part.instance for part in self.parts])[self.order].tolist()
        for (part, call, values), number, sender in zip(self.rows(), index, instance, strict=True):
            yield Arrival(self.parts[part].edge.number, call, values, number, sender, self.parts[part].method)

    @property
    def first_rows(self) -> Numbers:
        """The position of the first row of each call in the concatenated rows of ``parts``."""
        begins = np.ones(len(self.calls), bool)
        begins[1:] = self.calls[1:] != self.calls[:-1]
        return self.order[begins]


def chunks(parts: Sequence[Arrived], rows: int = CHUNK_ROWS) -> Iterator[Ordered]:
    """Chunks of about ``rows`` rows that never split a key group. Rows for partial state form one chunk."""
    there = [part for part in parts if len(part)]
    total = sum(map(len, there))
    if not total:
        return
    if total <= rows or any(part.edge.dispatch in (Dispatch.ANY, Dispatch.ALL) for part in there):
        yield Ordered.of(there)
        return
    groups = np.concatenate([part.group for part in there])
    numbers, counts = np.unique(groups, return_counts=True)
    which = (np.cumsum(counts) - counts) // rows
    for chunk in np.unique(which):
        chosen = numbers[which == chunk]
        yield Ordered.of([part.filter(np.isin(part.group, chosen)) for part in there])
