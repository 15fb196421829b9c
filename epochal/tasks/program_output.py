"""What a stage of a program gives: rows for other stages, and answers, gathered by port and made columns at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.programs.dataflow import Dispatch
from epochal.programs.execution import Answer, Departure, Failed
from epochal.state.keygroups import key_groups
from epochal.tasks.calls import TO
from epochal.tasks.program_calls import KEPT, Arrived, Numbers, Ordered
from epochal.tasks.program_ports import ERROR, INDEX, INSTANCE, PORT, SEQUENCE, Port, Ports


@dataclass(frozen=True)
class Destination:
    """Where rows of an edge go. ``key``: the column of the keys of the state that they access there, where it is by
    key; where it is not known, they may go anywhere, and stay where they are."""

    dispatch: Dispatch
    key: pa.Field | None = None


@dataclass
class _Rows:
    calls: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    """By the position of a row what its call has raised."""


class StageOutput:
    """What the calls of a chunk give, in the columns ``schema``. ``destinations``: by edge."""

    def __init__(
        self,
        ports: Ports,
        schema: pa.Schema,
        destinations: Mapping[int, Destination],
        chunk: Ordered,
        subtask: int,
        max_parallelism: int,
    ) -> None:
        self._ports, self._destinations, self._chunk = ports, destinations, chunk
        self._schema = schema
        self._subtask, self._max_parallelism = subtask, max_parallelism
        self._rows: dict[int, _Rows] = {}
        self._first = chunk.first_rows
        self._fan_outs = {edge for edge, method in ports.sending if method is not None}
        ends = np.cumsum([len(part) for part in chunk.parts])
        self._part: list[int] = np.searchsorted(ends, self._first, side="right").tolist()
        answering = [part.edge.dispatch is not Dispatch.ALL or subtask == 0 for part in chunk.parts]
        self._answers = [
            self._of(ports.answers[part.entry]) if answers else None
            for part, answers in zip(chunk.parts, answering, strict=True)
        ]
        """Of several answers of one call the first instance's counts."""

    def add(self, result: Departure | Answer) -> None:
        if isinstance(result, Answer):
            rows = self._answers[self._part[result.sequence]]
            if rows is not None:
                rows.calls.append(result.sequence)
                failed = isinstance(result.value, Failed)
                if failed:
                    rows.failed[len(rows.values)] = _shown(result.value)
                rows.values.append(None if failed else (result.value,))
            return
        if isinstance(result.values, Failed):
            rows = self._of(self._ports.sending[result.edge, None])
            rows.calls.append(result.sequence)
            rows.indices.append(result.index)
            rows.failed[len(rows.values)] = _shown(result.values)
            rows.values.append(None)
            return
        method = result.values[0] if result.edge in self._fan_outs else None
        rows = self._of(self._ports.sending[result.edge, method])
        rows.calls.append(result.sequence)
        rows.indices.append(result.index)
        rows.keys.append(result.key)
        rows.values.append(result.values if method is None else result.values[1:])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All that was given."""
        for number, rows in self._rows.items():
            if rows.calls:
                yield self._batch(self._ports.all[number], rows)

    def _of(self, port: Port) -> _Rows:
        found = self._rows.get(port.number)
        if found is None:
            found = self._rows[port.number] = _Rows()
        return found

    def _batch(self, port: Port, rows: _Rows) -> pa.RecordBatch:
        count = len(rows.calls)
        first = self._first[np.array(rows.calls, np.int64)]
        schema = self._schema
        columns: dict[str, pa.Array] = {
            PORT: pa.array(np.full(count, port.number, np.int32)),
            SEQUENCE: self._taken(first, lambda part: part.sequence),
            INDEX: pa.array(rows.indices or np.zeros(count, np.int32), pa.int32()),
            INSTANCE: pa.array(np.full(count, self._subtask, np.int32)),
            TO: pa.array(self._groups(port, rows, first), pa.int32()),
        }
        if rows.failed:
            columns[ERROR] = pa.array(list(map(rows.failed.get, range(count))), pa.string())
            nothing = (None,) * len(port.columns)
            rows.values = [nothing if each is None else each for each in rows.values]
        values = list(zip(*rows.values, strict=True)) if port.columns else []
        for name, column in zip(port.columns, values, strict=False):
            columns[name] = pa.array(column, schema.field(name).type)
        for each in schema if port.answers else ():
            if each.name.startswith(KEPT):
                columns[each.name] = self._taken(first, partial(_kept, each))
        arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _groups(self, port: Port, rows: _Rows, first: Numbers) -> npt.NDArray[Any]:
        destination = None if port.edge is None else self._destinations.get(port.edge.number)
        if destination is not None and destination.dispatch is Dispatch.ALL:
            return np.full(len(first), -1, np.int32)
        if destination is not None and destination.dispatch is Dispatch.GATHER:
            return self._key_groups(pa.field(SEQUENCE, pa.binary()), self._taken(first, lambda part: part.sequence))
        if destination is not None and destination.key is not None:
            return self._key_groups(destination.key, pa.array(rows.keys, destination.key.type))
        groups = np.concatenate([part.group for part in self._chunk.parts])[first]
        return np.where(groups < 0, self._subtask, groups)

    def _key_groups(self, column: pa.Field, keys: pa.Array) -> npt.NDArray[Any]:
        schema = pa.schema([column])
        return key_groups(pa.table([keys], schema=schema), schema, self._max_parallelism)

    def _taken(self, positions: Numbers, column: Callable[[Arrived], pa.Array]) -> pa.Array:
        return pa.concat_arrays(list(map(column, self._chunk.parts))).take(pa.array(positions))


def _shown(failed: Failed) -> str:
    return f"{failed.kind}: {failed.message}"


def _kept(column: pa.Field, part: Arrived) -> pa.Array:
    """What is kept of the rows of a part under this name; nulls, where it is kept of the calls of another entry."""
    kept = part.kept.get(column.name)
    return pa.nulls(len(part), column.type) if kept is None else kept.cast(column.type)
