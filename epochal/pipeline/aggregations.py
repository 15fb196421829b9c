"""The columns of ``aggregate``, as authors write them, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from epochal.aggregates.decomposition import decompose
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import Aggregation
from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.names import closest
from epochal.declarations.time_to_live import time_to_live
from epochal.errors import PipelineError
from epochal.state.expiry import Expiry
from epochal.state.table import DELETED_AT


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


def time_to_live_of(
    operator: str, ttl: object, ttl_on: object, deleted_when: object, columns: Collection[str]
) -> Expiry | None:
    """When groups expire. ``columns``: the names of the aggregates.

    Raises ``PipelineError``, also where an aggregate has the name of one of the options.
    """
    for option, value in (("ttl", ttl), ("ttl_on", ttl_on), ("deleted_when", deleted_when)):
        if isinstance(value, (Expression, MergeableAggregate)) or (isinstance(value, str) and "(" in value):
            raise PipelineError(
                f"Operator {operator!r}: {option} says when groups expire, and cannot be {value!s}; rename the column "
                "of this name."
            )
    expires = time_to_live(f"Operator {operator!r}", ttl, ttl_on)
    if deleted_when is None:
        return expires
    if deleted_when not in columns:
        raise PipelineError(
            f"Operator {operator!r}: deleted_when names {deleted_when!r}, but the operator has no such aggregate. "
            f"Name the aggregate that is true for deleted keys.{closest(str(deleted_when), columns)}"
        )
    if expires is None:
        raise PipelineError(
            f"Operator {operator!r}: deleted_when needs ttl='7 days': how long a deleted key is kept, so that an older "
            "row of it that arrives late does not bring it back."
        )
    return expires.model_copy(update={"column": DELETED_AT.name, "deleted": deleted_when})
