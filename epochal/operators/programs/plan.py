"""A stage of a program as an operator: all task elements of one state element, or a task element without state.

The stages of a program form a chain. Each reads the calls of the entries that begin in it, and one stream from the
previous stage, which contains rows for it, rows for later stages, and answers; it passes on what is not for it. So an
epoch of a program is one Spark job, with one shuffle for each stage.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa

from epochal.declarations.names import listed
from epochal.declarations.schemas import carried_schema, key_columns
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import nullable
from epochal.operators.distribution import Distribution, Input
from epochal.operators.programs.calls import KEPT, KEY, FedEntry, order_name
from epochal.operators.programs.counters import ADD, counts
from epochal.operators.programs.ports import Ports, spark_type
from epochal.operators.programs.stage_output import Destination
from epochal.operators.programs.work import Fed, ProgramWork
from epochal.programs.dataflow import Dataflow, Dispatch, Edge, Stage
from epochal.programs.declaration import StateElement
from epochal.programs.distribution import Distribution as Distributed
from epochal.programs.execution import Executable
from epochal.programs.merging import Instances, instances_of
from epochal.state.table import (
    ANY,
    GROUP,
    SUM_OR_NULL,
    ZERO_IS_NONE,
    Column,
    MergedColumns,
    StateKind,
    StateScope,
    StateTable,
)
from epochal.state.type_names import type_name
from epochal.state.types import check_column
from epochal.tasks.subtask_rows import InputColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MERGES = {Instances.PARTS: SUM_OR_NULL, Instances.ALIKE: ANY}


@dataclass(frozen=True, eq=False)
class ProgramGraph:
    """A program, shared by all of its stages. ``orders``: by entry, the types of its ``order_by`` columns, collected
    when the stages are planned; ``called``: the entries that are fed or served; ``read``: those whose answers are
    read."""

    program: type[Any]
    dataflow: Dataflow
    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    @cached_property
    def ports(self) -> Ports:
        return Ports.of(self.dataflow)

    @cached_property
    def code(self) -> bytes:
        """The compiled task elements, pickled once for all epochs of an attempt."""
        from pyspark import cloudpickle

        return cast(bytes, cloudpickle.dumps(Executable(self.dataflow, self.program)))  # type: ignore[no-untyped-call]

    def edge_of(self, entry: str) -> Edge:
        """The edge of the calls of an entry."""
        target = self.dataflow.entries[entry].target
        (edge,) = (edge for edge in self.dataflow.into(target) if edge.source is None)
        return edge

    def check_order(self, entry: FedEntry, frame: DataFrame) -> None:
        """Raises ``PipelineError`` if the ``order_by`` columns of an entry differ in type from those of other
        entries."""
        names = {order_name(number) for number in range(entry.order)}
        types = tuple(type_name(column.dataType) for column in frame.schema if column.name in names)
        if self.orders.get(entry.name, types) != types:
            self.orders.clear()  # the streams have changed
        self.orders[entry.name] = types
        for other, theirs in self.orders.items():
            if theirs != types:
                raise PipelineError(
                    f"Entry {entry.name!r} of program {self.dataflow.name} is fed in the order of {listed(types)}, and "
                    f"entry {other!r} in the order of {listed(theirs)}, but the calls of all entries have one order. "
                    "Order by columns of the same types."
                )

    def keyed_by(self, edge: Edge) -> Column | None:
        """The key column of the state that rows of an edge access, if they are dispatched by key."""
        element = self.dataflow.elements.get(self.dataflow.tasks[edge.target].element or "")
        if edge.dispatch is not Dispatch.KEY or element is None:
            return None
        key = element.model.key[0]
        found = self._key_type(edge, element)
        return None if found != spark_type(key.type) else Column(name=key.name, type=spark_type(key.type))

    def only_counts(self, edge: Edge) -> bool:
        """True if all accesses to the state of an edge only increase counts."""
        element = self.dataflow.elements.get(self.dataflow.tasks[edge.target].element or "")
        if element is None or not counts(element):
            return False
        tasks = [task for task in self.dataflow.tasks if task.element == element.name and task.entry in self.called]
        return edge.fan_out and all(task.writes.keys() == {ADD} and task.writes[ADD].rising for task in tasks)

    def _key_type(self, edge: Edge, element: StateElement) -> str:
        """The type of the dispatch value of an edge. If it differs from the type of the state's key, accesses fail."""
        if edge.fan_out:
            return spark_type(element.model.key[0].type)
        for each in edge.fields:
            if each.name == edge.key:
                return spark_type(each.type)
        return {bool: "boolean", int: "bigint", str: "string", bytes: "binary"}.get(type(constant_of(edge)), "")


def constant_of(edge: Edge) -> Any:
    """The constant dispatch value of an edge."""
    return ast.literal_eval(edge.key or "None")


@dataclass(frozen=True, eq=False)
class ProgramOperator(Operator):
    """State table: the operator's name, if the stage has a state element. ``fed``: the entries whose calls begin in
    this stage, by stream; ``carried``: whether there is a previous stage; ``program``: the name of the program."""

    kind: ClassVar[str] = "program"
    internal_rows: ClassVar[bool] = True
    name: str
    graph: ProgramGraph
    stage: int
    fed: tuple[Fed, ...]
    carried: bool
    program: str

    @property
    def scaled_as(self) -> str:
        """All stages have one number of subtasks: a stage that gathers the rows of all instances counts them."""
        return self.program

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (*map(self._calls, self.fed), *([Input("stage before", Distribution.BY_GROUP)] if self.carried else []))

    def _calls(self, fed: Fed) -> Input:
        name = ", ".join(entry.name for entry in fed)
        if self.graph.edge_of(fed[0].name).dispatch is Dispatch.ALL:
            return Input(name, Distribution.TO_ALL)
        return Input(name, Distribution.BY_KEY, (KEY,))

    @property
    def element(self) -> StateElement | None:
        return self.graph.dataflow.elements.get(self._stage.element or "")

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        for fed, frame in zip(self.fed, frames, strict=False):
            for entry in fed:
                if isinstance(entry, FedEntry):
                    self.graph.check_order(entry, frame)
        by_key = [frame for frame, input in zip(frames, self.inputs, strict=True) if input.keys]
        key = key_columns(self.name, (KEY,), by_key[0].schema) if by_key else ()
        table = None if self.element is None else state_table(self.name, self.element, self._instances)
        names = [column.name for column in key]
        columns = tuple(
            InputColumns.of(number, frame.columns, input.keys, names if input.keys else ())
            for number, (frame, input) in enumerate(zip(frames, self.inputs, strict=True))
        )
        work = ProgramWork(
            self.graph.code,
            self.graph.ports,
            self._stage,
            self._arriving,
            self._leaving,
            {entry.name: self.graph.edge_of(entry.name).number for fed in self.fed for entry in fed},
            self.fed,
            columns,
            self._keys,
            self.element,
            frozenset(self.graph.read),
        )
        columns_in = (column for frame in frames for column in carried_schema(frame.schema))
        kept = {column.name: column for column in columns_in if column.name.startswith(KEPT)}
        output = nullable(pa.schema([*self.graph.ports.schema, *kept.values()]))
        tables = () if table is None else (table,)
        return OperatorPlan(self.name, self.inputs, key, tables, work, output)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.graph.program,)

    def details(self) -> dict[str, Any]:
        tasks = [self.graph.dataflow.tasks[number].id for number in self._stage.tasks]
        of = {} if self.element is None else {"state": f"{self.element.distribution.value} {self.element.shown_kind}"}
        return {"program": self.graph.program.__name__, **of, "task elements": tasks}

    @property
    def grows(self) -> str | None:
        if self.element is None:
            return None
        return (
            "keeps elements until the program removes them. If the number of keys is unbounded, remove elements that "
            "are no longer needed."
        )

    @property
    def _stage(self) -> Stage:
        return self.graph.dataflow.stages[self.stage]

    @property
    def _arriving(self) -> dict[int, Edge]:
        return {edge.number: edge for edge in self.graph.dataflow.edges if edge.target in self._stage.tasks}

    @property
    def _leaving(self) -> dict[int, Destination]:
        found = {}
        for edge in self.graph.dataflow.edges:
            if edge.source in self._stage.tasks:
                key = self.graph.keyed_by(edge)
                column = None if key is None else key.to_arrow()
                found[edge.number] = Destination(edge.dispatch, column, self.graph.only_counts(edge))
        return found

    @property
    def _instances(self) -> Instances | None:
        """The relation of the instances of partial state; ``None`` for other state."""
        if self.element is None or self.element.distribution is not Distributed.PARTIAL:
            return None
        return instances_of(self.graph.dataflow, self.element)

    @property
    def _keys(self) -> dict[tuple[int, str | None], str]:
        """By edge, and the method of a fan-out, the name of the key value of the state access."""
        found: dict[tuple[int, str | None], str] = {}
        element = self.element
        for number, edge in self._arriving.items():
            if element is None or self.graph.keyed_by(edge) is None:
                continue
            if edge.key is not None and not edge.fan_out:
                found[number, None] = edge.key
            for method in self.graph.dataflow.tasks[edge.target].writes:
                access = element.kind.access(method)
                assert access is not None
                assert element.by is not None
                found[number, method] = access.key[element.by]
        return found


def state_table(operator: str, element: StateElement, instances: Instances | None = None) -> StateTable:
    """The state table of a state element, with its elements as rows. ``instances``: the relation of the instances of
    partial state."""
    key, sub_key, value = (
        tuple(Column(name=column.name, type=spark_type(column.type)) for column in columns)
        for columns in (element.model.key, element.model.sub_key, element.model.value)
    )
    for column in (*key, *sub_key):
        check_column(operator, column.name, column.type, key=True)
    if element.distribution is Distributed.PARTIAL:
        return StateTable(
            id=operator,
            operator=operator,
            kind=StateKind.MAP,
            scope=StateScope.PARTIAL,
            key=(GROUP,),
            sub_key=(*key, *sub_key),
            value=value,
            reconcile=None if instances is None else _reconcile(element, instances, value),
        )
    kind = StateKind.MAP if sub_key else StateKind.VALUE
    return StateTable(id=operator, operator=operator, kind=kind, key=key, sub_key=sub_key, value=value)


def _reconcile(element: StateElement, instances: Instances, value: Sequence[Column]) -> tuple[MergedColumns, ...]:
    sparse = instances is Instances.PARTS and element.kind.zero_is_none
    return tuple(
        MergedColumns(
            function=_MERGES[instances], columns={"value": column.name}, options={ZERO_IS_NONE: True} if sparse else {}
        )
        for column in value
    )
