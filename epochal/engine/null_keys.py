"""Rows with null in a key column: how many there are in the epoch's slice, and two of them.

A task sees only its share of the rows, and of an aggregate what Spark has made of them. Only a failed epoch pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame

from epochal.declarations.expressions import column, to_column
from epochal.engine.failures import failure_of
from epochal.engine.overflow import over_sources
from epochal.errors import InvalidKey
from epochal.pipeline.graph import Graph, NodeId
from epochal.tasks.calls import null_key
from epochal.tasks.reporting import as_failure, encode

_SHOWN = 2


def is_null_key(error: Exception) -> bool:
    failure = failure_of(error)
    return failure.type == InvalidKey.slug and "null in key column" in failure.message


def located(graph: Graph, frames: Mapping[NodeId, DataFrame]) -> InvalidKey | None:
    """The error that counts and shows the rows; ``None`` where no operator reads such rows from the sources."""
    for node, (frame, *_) in over_sources(graph, frames):
        keys = node.operator.inputs[0].keys
        rows = frame.where(reduce(or_, (to_column(column(name)).isNull() for name in keys)))
        number = rows.count()
        if number:
            examples = [row.asDict() for row in rows.limit(_SHOWN).collect()]
            name = next(name for name in keys if examples[0][_spelled(name, frame)] is None)
            error = null_key(node.name, name, number, examples)
            return InvalidKey(f"{error.message}\n{encode(as_failure(error, 'T2'))}")
    return None


def _spelled(name: str, frame: DataFrame) -> str:
    """Spark's names do not look at capitals."""
    return next(known for known in frame.columns if known.casefold() == name.casefold())
