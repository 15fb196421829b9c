"""The columns of ``aggregate``, as authors write them, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from epochal.aggregates.decomposition import decompose
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import Aggregation
from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.time_to_live import time_to_live
from epochal.errors import PipelineError
from epochal.state.expiry import Expiry


def declared_aggregations(
    operator: str, keys: Collection[str], columns: Mapping[str, str | Expression | MergeableAggregate]
) -> tuple[Aggregation, ...]:
    """``columns`` by name. Raises ``PipelineError`` that names operator and column, with the fix."""
    if not columns:
        raise PipelineError(f"Operator {operator!r}: aggregate() needs a column, such as flights='count(*)'.")
    taken = {key.casefold() for key in keys}
    aggregations = []
    for column, expression in columns.items():
        what = f"Operator {operator!r}, column {column!r}"
        if column.startswith("_"):
            raise PipelineError(f"{what}: names that start with '_' are Epochal's own. Rename it.")
        if column.casefold() in taken:
            raise PipelineError(f"{what}: a key column has this name. Rename the aggregate.")
        if not isinstance(expression, MergeableAggregate):
            expression = as_expression(what, expression)
        decompose(what, expression)
        aggregations.append(Aggregation(name=column, expression=expression))
    return tuple(aggregations)


def time_to_live_of(operator: str, ttl: object, ttl_on: object) -> Expiry | None:
    """When groups expire. Raises ``PipelineError``, also where an aggregate has the name of one of the two."""
    for option, value in (("ttl", ttl), ("ttl_on", ttl_on)):
        if isinstance(value, (Expression, MergeableAggregate)) or (isinstance(value, str) and "(" in value):
            raise PipelineError(
                f"Operator {operator!r}: {option} says when groups expire, and cannot be {value!s}; rename the column "
                "of this name."
            )
    return time_to_live(f"Operator {operator!r}", ttl, ttl_on)
