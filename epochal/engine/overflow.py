"""Where a number left its type inside Spark, whose error names neither operator nor column.

Only a failed epoch pays: the aggregates of its slice are computed once more, first all of an operator, then column by
column. Operators that read another operator's output are left out, as its task would have to run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from epochal.engine.operators import OperatorPlan
from epochal.errors import EpochAborted
from epochal.pipeline.aggregates import MergeableAggregate
from epochal.pipeline.expressions import column, to_column
from epochal.pipeline.graph import AggregateNode, Graph, NodeId, OperatorNode

_OVERFLOW = re.compile(r"\[(?:\w*ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE)\b")


def is_overflow(error: Exception) -> bool:
    return isinstance(error, PySparkException) and _OVERFLOW.search(str(error)) is not None


def located(graph: Graph, frames: Mapping[NodeId, DataFrame], plans: Mapping[str, OperatorPlan]) -> EpochAborted | None:
    """The error that names operator and column; ``None`` where no aggregate of the epoch's slice overflows.

    ``frames``: of the graph's nodes over the epoch's slice, as far as they were made.
    """
    for node, frame in over_sources(graph, frames):
        found = _in_operator(node, frame, plans[node.name]) if isinstance(node, AggregateNode) else None
        if found is not None:
            return found
    return None


def over_sources(graph: Graph, frames: Mapping[NodeId, DataFrame]) -> Iterator[tuple[OperatorNode, DataFrame]]:
    """The operators, with their inputs, that read no other operator's output: so no task has to run again."""
    for node in graph.operators:
        above = graph.ancestors((node.input,))
        if node.input in frames and not any(isinstance(graph.node(id), OperatorNode) for id in above):
            yield node, frames[node.input]


def _in_operator(node: AggregateNode, frame: DataFrame, plan: OperatorPlan) -> EpochAborted | None:
    if not _overflows(node, frame, plan.partials):
        return None
    if _fails(frame):
        return EpochAborted(
            f"A number leaves its type in the columns that operator {node.name!r} reads. "
            "Cast what they are computed from to a wider type, decimal(38,s) or double."
        )
    parts = plan.aggregation.parts if plan.aggregation else ()
    for aggregation in node.aggregations:
        partials = [
            to_column(kept.expression).alias(name)
            for part in parts
            if part.column == aggregation.name
            for kept, name in zip(part.partials, part.state_columns, strict=True)
        ]
        if _overflows(node, frame, partials):
            return EpochAborted(
                f"Operator {node.name!r}, column {aggregation.name!r}: within one epoch, a number leaves its type in "
                f"{aggregation.expression}. {MergeableAggregate.advice}"
            )
    return None


def _overflows(node: AggregateNode, frame: DataFrame, partials: list[Column]) -> bool:
    return _fails(frame.groupBy(*(to_column(column(name)) for name in node.keys)).agg(*partials))


def _fails(frame: DataFrame) -> bool:
    """Whether computing all columns overflows; nothing is kept."""
    try:
        frame.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        return is_overflow(error)
    return False
