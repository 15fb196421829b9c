"""The columns of ``aggregate``, as authors write them, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from epochal.aggregates.decomposition import decompose
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import Aggregation
from epochal.declarations.expressions import Expression, as_expression
from epochal.errors import PipelineError


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
