"""Definitions of the state tables of a graph: the declarations of their authors, from the sources on.

The walk stops at operators with state tables, which have their own definitions. Unknown parts, mainly authors' code,
are opaque: they depend on all columns that they read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import AggregationPlan
from epochal.declarations.expressions import Expression
from epochal.declarations.references import is_star, multiplies_rows
from epochal.declarations.written import code_of, written
from epochal.operators.contract import Operator, OperatorPlan
from epochal.pipeline import verbs
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
)
from epochal.state.definition import (
    Call,
    Code,
    ColumnDefinition,
    Definition,
    Drop,
    InputDefinition,
    Kept,
    Leaf,
    Opaque,
    OperatorDefinition,
    Passed,
    Relation,
    Select,
    Stateless,
    TableJoin,
    Timed,
    Union,
    Where,
    With,
    Written,
)
from epochal.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_definitions(
    graph: Graph, frames: Mapping[NodeId, DataFrame], plans: Mapping[NodeId, OperatorPlan]
) -> tuple[StateTable, ...]:
    """The state tables of all operators, with definitions. ``frames`` and ``plans``: those of an evaluated graph."""
    walk = _Walk(graph, frames, plans)
    return tuple(table for node in graph.operators if node.id in plans for table in walk.tables(node))


@dataclass
class _Walk:
    graph: Graph
    frames: Mapping[NodeId, DataFrame]
    plans: Mapping[NodeId, OperatorPlan]
    _relations: dict[NodeId, Relation] = field(default_factory=dict)

    def tables(self, node: OperatorNode) -> Iterator[StateTable]:
        plan = self.plans[node.id]
        if not plan.tables:
            return
        first = min(table.id for table in plan.tables)
        columns = dict(_aggregates(plan))
        for table in plan.tables:
            kept = {column.name: columns[column.name] for column in table.value if column.name in columns}
            operator = self.definition(node) if table.id == first else None
            yield table.model_copy(update={"definition": Definition(columns=kept, operator=operator)})

    def definition(self, node: OperatorNode) -> OperatorDefinition:
        operator = node.operator
        defined = tuple(
            InputDefinition(
                rows=self.relation(id),
                keys=operator.inputs[number].keys,
                time=operator.inputs[number].event_time,
                reads=_reads(operator, number),
                kept=operator.keeps(number),
            )
            for number, id in enumerate(node.inputs)
        )
        return OperatorDefinition(
            inputs=tuple(
                _without_unread(each, operator.state_depends_on(number)) for number, each in enumerate(defined)
            ),
            output=dict(self._output(node)),
            code=tuple(_codes(operator)),
        )

    def _output(self, node: OperatorNode) -> Iterator[tuple[str, Written | Passed]]:
        """The definitions of output columns. Without authors' code, key columns are passed on."""
        operator = node.operator
        if operator.author_code:
            return
        names = self._names(node.id)
        computed = {name.casefold(): expression for name, expression in operator.computed_columns.items()}
        for name in names:
            expression = computed.get(name.casefold())
            if expression is not None:
                yield name, _aggregate_as_written(expression)
                continue
            for number, id in enumerate(node.inputs):
                keys = {key.casefold() for key in operator.inputs[number].keys}
                there = {column.casefold() for column in self._names(id)}
                if name.casefold() in (there if operator.passes_on(number) else there & keys):
                    yield name, Passed(input=number, column=name)
                    break

    def relation(self, id: NodeId) -> Relation:
        if id not in self._relations:
            self._relations[id] = self._of(id)
        return self._relations[id]

    def _of(self, id: NodeId) -> Relation:
        node = self.graph.node(id)
        match node:
            case SourceNode():
                return Leaf(kind="source", name=node.name, columns=self._types(id))
            case StaticNode():
                return Leaf(kind="table", name=node.name, columns=self._types(id))
            case FeedbackNode():
                return Leaf(kind="loop", name=node.name, columns=self._types(id))
            case OperatorNode() if self.plans[id].tables:
                return Leaf(kind="operator", name=node.name, columns=self._types(id))
            case OperatorNode():
                return Stateless(name=node.name, columns=tuple(self._names(id)), definition=self.definition(node))
            case SideNode():
                return self._side(node)
            case EventTimeNode():
                return Timed(of=self.relation(node.input), column=node.event_time.column)
            case TransformNode():
                return self._verb(node)
            case SinkNode() | CloseNode():
                return self.relation(node.input)

    def _side(self, node: SideNode) -> Relation:
        above = self.graph.node(node.input)
        assert isinstance(above, OperatorNode | EventTimeNode)  # nothing else has sides
        if not node.by_engine:
            return Leaf(kind="side", name=f"{above.name}.{node.side}", columns=self._types(node.id))
        rows = tuple(map(self.relation, inputs(above)))
        return Kept(of=rows[0] if len(rows) == 1 else Union(of=rows), side=node.side, owner=above.name)

    def _verb(self, node: TransformNode) -> Relation:
        function = node.function
        rows = tuple(self.relation(each) for each in node.inputs)
        if isinstance(function, partial):
            found = self._known_verb(node, function, rows)
            if found is not None:
                return found
        if function in (verbs.union, verbs.union_with_hops):
            return Union(of=rows)
        return self._opaque(node, function)

    def _known_verb(self, node: TransformNode, function: partial[Any], rows: Sequence[Relation]) -> Relation | None:
        multiplies = any(map(multiplies_rows, node.expressions))
        if function.func is verbs.where:
            return Where(of=rows[0], condition=written(function.args[0]))
        if function.func is verbs.with_columns:
            columns = {name: written(column) for name, column in function.args[0].items()}
            return With(of=rows[0], columns=columns, multiplies=multiplies)
        if function.func is verbs.drop:
            return Drop(of=rows[0], columns=tuple(function.args[0]))
        if function.func is verbs.join:
            on, how = function.args
            return TableJoin(of=rows[0], table=rows[1], on=tuple(on), how=how)
        if function.func is verbs.select:
            chosen = self._selected(node, function.args[0])
            return None if chosen is None else Select(of=rows[0], columns=chosen, multiplies=multiplies)
        return None

    def _selected(
        self, node: TransformNode, expressions: Sequence[Expression]
    ) -> tuple[tuple[str, Written], ...] | None:
        """Each column with the name that Spark assigns; ``None`` if an expression returns several columns."""
        names, above = list(self._names(node.id)), len(self._names(node.inputs[0]))
        columns: list[tuple[str, Written]] = []
        position = 0
        for expression in expressions:
            if position >= len(names):
                return None
            if is_star(expression):
                columns.append(("*", "*"))
                position += above
            else:
                columns.append((names[position], written(expression)))
                position += 1
        return tuple(columns) if position == len(names) else None

    def _opaque(self, node: TransformNode, function: Any) -> Opaque:
        code, label = _author_function(node, function)
        return Opaque(
            of=tuple(self.relation(each) for each in node.inputs),
            label=label,
            columns=tuple(self._names(node.id)),
            code=code,
        )

    def _names(self, id: NodeId) -> Sequence[str]:
        return self.frames[id].columns

    def _types(self, id: NodeId) -> dict[str, str]:
        return dict(self.frames[id].dtypes)


def _author_function(node: TransformNode, function: Any) -> tuple[Code | None, str]:
    """The author's code in a verb, and a name of the verb that is equal for equal code."""
    if node.by_author:
        return code_of(function), "transform"
    if isinstance(function, partial) and function.func is verbs.map_partitions:
        return code_of(function.args[1]), "map"
    if isinstance(function, partial):
        texts = "; ".join(str(each) for each in node.expressions)
        return None, f"{function.func.__name__} {texts}"
    return None, type(function).__name__


def _codes(operator: Operator) -> Iterator[Code]:
    yield from map(code_of, operator.author_code)
    for expression in operator.computed_columns.values():
        if isinstance(expression, MergeableAggregate):
            yield code_of(type(expression))


def _reads(operator: Operator, number: int) -> tuple[str, ...] | None:
    """The columns that the state depends on. Aggregates define their own columns."""
    if number == 0 and operator.computed_columns:
        return ()
    columns = operator.state_depends_on(number)
    return None if columns is None else tuple(sorted(columns))


def _aggregates(plan: OperatorPlan) -> Iterator[tuple[str, ColumnDefinition]]:
    """By state column, its merge function and the author's aggregate."""
    aggregation = getattr(plan, "aggregation", None)
    if not isinstance(aggregation, AggregationPlan):
        return
    for part in aggregation.parts:
        if part.call is None and type(part.aggregate).__module__.startswith("epochal.aggregates."):
            continue  # internal to the aggregate
        for kept, name in zip(part.partials, part.state_columns, strict=True):
            call = _own(part.aggregate) if part.call is None else written(part.call)
            author = None if name == part.column else part.column
            yield name, ColumnDefinition(merge=kept.name, aggregate=call, column=author)


def _aggregate_as_written(expression: Expression | MergeableAggregate) -> Written:
    return _own(expression) if isinstance(expression, MergeableAggregate) else written(expression)


def _own(aggregate: MergeableAggregate) -> Call:
    """An author's aggregate: its class, and the expressions that Spark computes from a slice."""
    return Call(
        call=f"own {code_of(type(aggregate)).identity}",
        arguments=tuple(written(kept.computed) for kept in aggregate.partials()),
    )


_NAME = re.compile(r"\w+")


def _without_unread(input: InputDefinition, read: frozenset[str] | None) -> InputDefinition:
    """The input with leaves that only have columns that can be read, to keep manifests small."""
    if read is None:
        return input
    names = {word for name in (*input.keys, *read, input.time or "") for word in _words(name)}
    names.update(word for text in _texts(input.rows) for word in _words(text))
    return input.model_copy(update={"rows": _pruned(input.rows, names)})


def _words(text: str) -> Iterable[str]:
    return (word.casefold() for word in _NAME.findall(text))


def _texts(relation: Relation) -> Iterator[str]:
    match relation:
        case Leaf():
            return
        case Opaque() | Stateless():
            return
        case Union():
            for each in relation.of:
                yield from _texts(each)
        case TableJoin():
            yield from relation.on
            yield from _texts(relation.table)
            yield from _texts(relation.of)
        case _:
            yield relation.model_dump_json(exclude={"of"})
            yield from _texts(relation.of)


def _pruned(relation: Relation, names: set[str]) -> Relation:
    """The relation without unread columns. Relations that authors' code reads keep all columns."""
    match relation:
        case Leaf():
            kept = {name: type for name, type in relation.columns.items() if names.issuperset(_words(name))}
            return relation.model_copy(update={"columns": kept})
        case Opaque() | Stateless():
            return relation
        case Union():
            return relation.model_copy(update={"of": tuple(_pruned(each, names) for each in relation.of)})
        case TableJoin():
            of, table = _pruned(relation.of, names), _pruned(relation.table, names)
            return relation.model_copy(update={"of": of, "table": table})
        case _:
            return relation.model_copy(update={"of": _pruned(relation.of, names)})
