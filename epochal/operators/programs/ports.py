"""The stream of rows from one stage of a program to the next: rows of several kinds, in shared columns.

Each kind has a *port*, whose number is part of its rows: an edge of the dataflow, a write method of the fan-out of an
edge, or the answers of an entry. All ports share columns by type, so that the number of columns is that of the widest
port. The other columns:

==============  ====================================================================================
``_port``       the number of the port of the row
``_sequence``   the position of the call among all calls of the epoch, as bytes in the same order
``_index``      the position of the row among those of a call that a fan-out sends
``_instance``   the subtask that sent the row
``_to``         the key group to which the row is sent; -1: to all subtasks
``_error``      the error of the call, in an answer
``_kept_n_m``   the returned column m of the calls of entry n
==============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from epochal.programs.dataflow import Dataflow, Edge
from epochal.programs.value_types import NOTHING, ValueType
from epochal.state.types import arrow_type, nullable_within
from epochal.tasks.subtask_rows import TO

PORT, SEQUENCE, INDEX, INSTANCE, ERROR = "_port", "_sequence", "_index", "_instance", "_error"
CONTROL = (
    pa.field(PORT, pa.int32()),
    pa.field(SEQUENCE, pa.binary()),
    pa.field(INDEX, pa.int32()),
    pa.field(INSTANCE, pa.int32()),
    pa.field(TO, pa.int32()),
    pa.field(ERROR, pa.string()),
)


def spark_type(type: ValueType) -> str:
    """The type of a value in the spelling of state tables and Spark."""
    return type.spark.replace(" ", "")


@dataclass(frozen=True)
class Port:
    """A kind of rows. ``names``: names of its values; ``columns``: the columns of these values; ``edge``: ``None`` for
    answers of ``entry``; ``method``: the write method of a fan-out."""

    number: int
    entry: str
    edge: Edge | None
    method: str | None
    names: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def answers(self) -> bool:
        """True if rows of this port lead to an answer or are answers."""
        return self.method is None


@dataclass(frozen=True)
class Ports:
    """All ports of a program. ``schema``: the columns of the stream without the returned columns of calls."""

    all: tuple[Port, ...]
    schema: pa.Schema
    entries: tuple[str, ...]
    """The entry of each task element."""

    @classmethod
    def of(cls, dataflow: Dataflow) -> Ports:
        slots = _Slots()
        ports: list[Port] = []

        def add(entry: str, edge: Edge | None, method: str | None, types: Mapping[str, ValueType]) -> None:
            columns = slots.columns(list(map(spark_type, types.values())))
            ports.append(Port(len(ports), entry, edge, method, tuple(types), columns))

        for edge in dataflow.edges:
            if edge.source is None:
                continue
            target = dataflow.tasks[edge.target]
            if edge.fan_out:
                for method, write in target.writes.items():
                    add(target.entry, edge, method, write.parameter_types)
            else:
                types = {field.name: field.type for field in edge.fields}
                add(target.entry, edge, None, types)
        for name, entry in dataflow.entries.items():
            answer = {} if entry.answer is NOTHING else {"value": entry.answer}
            add(name, None, None, answer)
        return cls(tuple(ports), pa.schema([*CONTROL, *slots.fields]), tuple(task.entry for task in dataflow.tasks))

    @cached_property
    def answers(self) -> dict[str, Port]:
        """The ports of answers, by entry."""
        return {port.entry: port for port in self.all if port.edge is None}

    @cached_property
    def sending(self) -> dict[tuple[int, str | None], Port]:
        """The ports of edges, by edge and write method of a fan-out."""
        return {(port.edge.number, port.method): port for port in self.all if port.edge is not None}


class _Slots:
    """Assigns columns by type; different ports use the same columns."""

    def __init__(self) -> None:
        self.fields: list[pa.Field] = []
        self._by_type: dict[str, list[str]] = {}

    def columns(self, types: Sequence[str]) -> tuple[str, ...]:
        used: dict[str, int] = {}
        taken = []
        for type in types:
            names, number = self._by_type.setdefault(type, []), used.get(type, 0)
            if number == len(names):
                names.append(f"_value_{len(self.fields)}")
                self.fields.append(pa.field(names[-1], nullable_within(arrow_type(type))))
            taken.append(names[number])
            used[type] = number + 1
        return tuple(taken)
