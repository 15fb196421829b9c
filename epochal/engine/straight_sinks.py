"""Sinks that read columns of an operator's task without a computation, so that one Python task runs both.

Otherwise the operator's rows would be passed from Python to Spark and back. Verbs between the two may only choose,
rename and reorder columns and fields of structs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from epochal.declarations.expressions import Expression
from epochal.declarations.references import is_star, picked_field
from epochal.engine.planner import JobShape
from epochal.operators.contract import OperatorPlan
from epochal.pipeline import verbs
from epochal.pipeline.graph import Graph, NodeId, OperatorNode, SinkNode, TransformNode
from epochal.tasks.task_output import PassthroughColumn

Columns = Mapping[str, PassthroughColumn | None]
"""By name, in order, the column of the operator's task; ``None``: computed by Spark."""

_LITERALS: Final = frozenset({"null", "true", "false"})
"""Names that Spark reads as values, even if there are columns of these names."""


@dataclass(frozen=True)
class StraightSink:
    """A sink, its columns as columns of the operator's task, and their types as Spark would pass them.

    ``verbs``: the nodes between the operator and the sink.
    """

    sink: SinkNode
    verbs: tuple[NodeId, ...]
    columns: tuple[PassthroughColumn, ...]
    schema: pa.Schema


def straight_sinks(
    graph: Graph, shape: JobShape, plans: Mapping[str, OperatorPlan], timezone: str | None
) -> dict[NodeId, StraightSink]:
    """The sinks by their operators. ``timezone``: of Spark's session, which the types of timestamps name."""
    found = {}
    for sink in graph.sinks:
        between = []
        node = graph.node(sink.input)
        while isinstance(node, TransformNode) and len(node.inputs) == 1:
            between.append(node)
            node = graph.node(node.inputs[0])
        if sink.rejects is not None or not isinstance(node, OperatorNode) or node.id not in shape.read_once:
            continue
        plan = plans[node.name]
        columns: Columns | None = plan.columns_of_task
        for verb in reversed(between):
            columns = None if columns is None else _picked(verb, columns)
        known = {name: column for name, column in (columns or {}).items() if column is not None}
        schema = _handed(known, plan.output, timezone) if known and columns and len(known) == len(columns) else None
        if schema is not None:
            found[node.id] = StraightSink(sink, tuple(verb.id for verb in between), tuple(known.values()), schema)
    return found


def _picked(verb: TransformNode, columns: Columns) -> Columns | None:
    """The columns of a verb that computes nothing; ``None`` if it does, or if this is unknown."""
    function = verb.function
    if isinstance(function, partial) and function.func is verbs.drop:
        gone = {name.casefold() for name in function.args[0]}
        return {name: column for name, column in columns.items() if name.casefold() not in gone}
    if not isinstance(function, partial) or function.func is not verbs.select:
        return None
    found: list[tuple[str, PassthroughColumn | None]] = []
    for expression in function.args[0]:
        if is_star(expression):
            found.extend(columns.items())
            continue
        one = _selected(expression, columns)
        if one is None:
            return None
        found.append(one)
    distinct = {name.casefold() for name, _ in found}
    return dict(found) if len(distinct) == len(found) else None


def _selected(expression: Expression, columns: Columns) -> tuple[str, PassthroughColumn] | None:
    picked = picked_field(expression)
    if picked is None:
        return None
    (name, *fields), alias = picked
    same = [column for known, column in columns.items() if known.casefold() == name.casefold()]
    column = same[0] if len(same) == 1 and name.casefold() not in _LITERALS else None
    return None if column is None else (alias, replace(column, fields=(*column.fields, *fields)))


def _handed(columns: Mapping[str, PassthroughColumn], output: pa.Schema, timezone: str | None) -> pa.Schema | None:
    """The types of the columns as Spark would pass them; ``None`` if one is nested, or not a field of a struct."""
    used = dict.fromkeys(column.column for column in columns.values())
    handed = to_arrow_schema(from_arrow_schema(pa.schema(map(output.field, used))), timezone=timezone)
    fields = []
    for name, column in columns.items():
        field = handed.field(column.column)
        nullable = field.nullable and not column.or_zero
        for inner in column.fields:
            if not pa.types.is_struct(field.type) or field.type.get_field_index(inner) < 0:
                return None
            field = field.type.field(inner)
            nullable = nullable or field.nullable
        if pa.types.is_nested(field.type):
            return None
        fields.append(field.with_name(name).with_nullable(nullable))
    return pa.schema(fields)
