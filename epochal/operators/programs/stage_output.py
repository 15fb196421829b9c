"""The output of a stage of a program: rows for other stages, and answers, collected by port and converted to
columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.operators.programs.calls import KEPT, Arrived, Numbers, Ordered
from epochal.operators.programs.counters import summed
from epochal.operators.programs.ports import ERROR, INDEX, INSTANCE, PORT, SEQUENCE, Port, Ports
from epochal.programs.dataflow import Dispatch, Edge
from epochal.programs.rows import Answering, Failed, Sending, Writing
from epochal.state.keygroups import key_groups
from epochal.tasks.subtask_rows import TO


@dataclass(frozen=True)
class Destination:
    """The destination of the rows of an edge. ``key``: the key column of the state that they access, for access by key;
    ``None``: any subtask can process them, and they stay on the current one. ``only_counts``: the state has counts that
    only increase, so that rows of a key may be added up before they are sent."""

    dispatch: Dispatch
    key: pa.Field | None = None
    only_counts: bool = False


@dataclass
class _Rows:
    """The rows of one port. ``calls`` and ``indices`` are parallel to ``values``, which has the values of answers, and
    tuples of values of other rows."""

    calls: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    """The error of the call, by the position of its row."""
    key: int | None = None
    """The position of the key among the values, if there are no ``keys``."""


class StageOutput:
    """The output of the calls of a chunk, with the columns ``schema``. ``destinations``: by edge; ``read``: the entries
    whose answers are read."""

    def __init__(
        self,
        ports: Ports,
        schema: pa.Schema,
        destinations: Mapping[int, Destination],
        read: Collection[str],
        chunk: Ordered,
        subtask: int,
        max_parallelism: int,
    ) -> None:
        self._ports, self._destinations, self._read, self._chunk = ports, destinations, read, chunk
        self._schema = schema
        self._subtask, self._max_parallelism = subtask, max_parallelism
        self._rows: dict[int, _Rows] = {}
        self._first = chunk.first_rows

    def answering(self, edge: Edge) -> Answering:
        port = self._ports.answers[self._ports.entries[edge.target]]
        if port.entry not in self._read or (edge.dispatch is Dispatch.ALL and self._subtask != 0):
            return _ignore_answer  # only the first instance answers a call to all instances
        rows = self._of(port)
        call, give = rows.calls.append, rows.values.append

        def answer(sequence: int, value: Any) -> None:
            call(sequence)
            if isinstance(value, Failed):
                rows.failed[len(rows.values)] = _shown(value)
                value = None
            give(value)

        return answer

    def sending(self, edge: Edge) -> Sending:
        port = self._ports.sending[edge.number, None]
        rows, nothing = self._of(port), (None,) * len(port.columns)
        call, dispatch, give = rows.calls.append, rows.keys.append, rows.values.append

        def send(sequence: int, key: Any, values: Sequence[Any] | Failed) -> None:
            call(sequence)
            dispatch(key)
            if isinstance(values, Failed):
                rows.failed[len(rows.values)] = _shown(values)
                values = nothing
            give(values)

        return send

    def writing(self, edge: Edge, method: str, key: int) -> Writing:
        rows = self._of(self._ports.sending[edge.number, method])
        rows.key = key
        call, number, give = rows.calls.append, rows.indices.append, rows.values.append

        def write(sequence: int, index: int, values: Sequence[Any]) -> None:
            call(sequence)
            number(index)
            give(values)

        return write

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All collected rows."""
        for number, rows in self._rows.items():
            if rows.calls:
                yield self._batch(self._ports.all[number], rows)

    def _of(self, port: Port) -> _Rows:
        return self._rows.setdefault(port.number, _Rows())

    def _batch(self, port: Port, rows: _Rows) -> pa.RecordBatch:
        first = self._first[np.array(rows.calls, np.int64)]
        schema = self._schema
        of_columns: list[Any] = [rows.values] if port.edge is None else list(zip(*rows.values, strict=True))
        values = {
            name: pa.array(column, schema.field(name).type)
            for name, column in zip(port.columns, of_columns, strict=False)
        }
        destination = None if port.edge is None else self._destinations.get(port.edge.number)
        counts = destination is not None and destination.only_counts
        if counts and (sums := summed(*(values[name] for name in port.columns))) is not None:
            chosen, amount = sums
            key, added = port.columns
            first, values = first[chosen], {key: values[key].take(pa.array(chosen)), added: amount}
            rows = _Rows(key=rows.key)
        count = len(first)
        columns: dict[str, pa.Array] = {
            PORT: pa.array(np.full(count, port.number, np.int32)),
            SEQUENCE: self._taken(first, lambda part: part.sequence),
            INDEX: pa.array(rows.indices or np.zeros(count, np.int32), pa.int32()),
            INSTANCE: pa.array(np.full(count, self._subtask, np.int32)),
            TO: pa.array(self._groups(port, destination, rows, first, values), pa.int32()),
            **values,
        }
        if rows.failed:
            columns[ERROR] = pa.array(list(map(rows.failed.get, range(count))), pa.string())
        for each in schema if port.answers else ():
            if each.name.startswith(KEPT):
                columns[each.name] = self._taken(first, partial(_kept, each))
        arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _groups(
        self,
        port: Port,
        destination: Destination | None,
        rows: _Rows,
        first: Numbers,
        values: Mapping[str, pa.Array],
    ) -> npt.NDArray[Any]:
        if destination is not None and destination.dispatch is Dispatch.ALL:
            return np.full(len(first), -1, np.int32)
        if destination is not None and destination.dispatch is Dispatch.GATHER:
            return self._key_groups(pa.field(SEQUENCE, pa.binary()), self._taken(first, lambda part: part.sequence))
        if destination is not None and destination.key is not None:
            keys = rows.keys if rows.key is None else values[port.columns[rows.key]]
            return self._key_groups(destination.key, pa.array(keys, destination.key.type))
        groups = np.concatenate([part.group for part in self._chunk.parts])[first]
        return np.where(groups < 0, self._subtask, groups)

    def _key_groups(self, column: pa.Field, keys: pa.Array) -> npt.NDArray[Any]:
        schema = pa.schema([column])
        return key_groups(pa.table([keys], schema=schema), schema, self._max_parallelism)

    def _taken(self, positions: Numbers, column: Callable[[Arrived], pa.Array]) -> pa.Array:
        return pa.concat_arrays(list(map(column, self._chunk.parts))).take(pa.array(positions))


def _ignore_answer(sequence: int, value: Any) -> None:
    """Drop an answer that is not read."""


def _shown(failed: Failed) -> str:
    return f"{failed.kind}: {failed.message}"


def _kept(column: pa.Field, part: Arrived) -> pa.Array:
    """The returned column of a part with this name; nulls if only the calls of another entry have it."""
    kept = part.kept.get(column.name)
    return pa.nulls(len(part), column.type) if kept is None else kept.cast(column.type)
