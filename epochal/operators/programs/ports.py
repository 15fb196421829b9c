"""What goes from one stage of a program to the next: one stream of rows, of several kinds, in columns that they share.

Each kind has a *port*, a number that stands in its rows: an edge of the dataflow, a method that an edge's fan-out
writes by, or the answers of an entry. All ports share columns, by type, so that there are as many as the widest needs.
The columns beside:

==============  ====================================================================================
``_port``       of which kind the row is
``_sequence``   the call's place among all calls of the epoch, as bytes that compare like it
``_index``      the row's place among those of a call that a fan-out sends
``_instance``   the subtask that sent it
``_to``         the key group that it goes to; -1: to all subtasks
``_error``      of an answer: what the call has raised
``_kept_n_m``   of the calls of entry n: column m of what comes out again with the answer
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
    """A value's type as state tables and Spark spell it."""
    return type.spark.replace(" ", "")


@dataclass(frozen=True)
class Port:
    """``names``: of its values; ``columns``: those that they stand in; ``edge`` ``None``: answers of ``entry``;
    ``method``: that a fan-out writes by."""

    number: int
    entry: str
    edge: Edge | None
    method: str | None
    names: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def answers(self) -> bool:
        """Whether a call that has rows of this port is still to be answered, or is now."""
        return self.method is None


@dataclass(frozen=True)
class Ports:
    """``schema``: all columns of the stream but for what is kept of calls."""

    all: tuple[Port, ...]
    schema: pa.Schema
    entries: tuple[str, ...]
    """Of each task element the entry that it is of."""

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
        """By entry."""
        return {port.entry: port for port in self.all if port.edge is None}

    @cached_property
    def sending(self) -> dict[tuple[int, str | None], Port]:
        """By edge, and the method that a fan-out writes by."""
        return {(port.edge.number, port.method): port for port in self.all if port.edge is not None}


class _Slots:
    """Columns by type, each for any port that has not used it yet."""

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
