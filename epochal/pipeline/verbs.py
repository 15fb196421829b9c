"""The stateless verbs on DataFrames: what the transforms of a graph do when Spark is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from epochal.contracts.source import PARTITION
from epochal.declarations.expressions import Expression, to_column
from epochal.declarations.feedback import HOP
from epochal.declarations.names import require_columns
from epochal.operators.declared import declared_columns
from epochal.operators.process.author_maps import AuthorMap
from epochal.tasks.arrow_tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def select(columns: tuple[Expression, ...], frame: DataFrame) -> DataFrame:
    return frame.select(*map(to_column, columns))


def select_carrying(columns: tuple[Expression, ...], frame: DataFrame) -> DataFrame:
    """Each row with its partition, which stars bring already."""
    selected = select(columns, frame)
    if PARTITION in selected.columns:
        return selected
    return frame.select(*map(to_column, columns), PARTITION)


def where(condition: Expression, frame: DataFrame) -> DataFrame:
    return frame.where(to_column(condition))


def with_columns(columns: Mapping[str, Expression], frame: DataFrame) -> DataFrame:
    return frame.withColumns({name: to_column(column) for name, column in columns.items()})


def drop(columns: tuple[str, ...], frame: DataFrame) -> DataFrame:
    require_columns(columns, frame.columns)
    return frame.drop(*columns)


def union(frame: DataFrame, *others: DataFrame) -> DataFrame:
    for other in others:
        require_columns(tuple(frame.columns), other.columns, "every input of the union")
        require_columns(tuple(other.columns), frame.columns, "every input of the union")
        frame = frame.unionByName(other)
    return frame


def union_with_hops(*frames: DataFrame) -> DataFrame:
    """Rows that have not come out of a loop that counts hops have gone round no time."""
    if any(HOP in each.columns for each in frames):
        frames = tuple(each if HOP in each.columns else _at_hop_0(each) for each in frames)
    return union(*frames)


def _at_hop_0(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", f"0 AS {HOP}")


def join(columns: tuple[str, ...], how: str, frame: DataFrame, table: DataFrame) -> DataFrame:
    require_columns(columns, frame.columns)
    require_columns(columns, table.columns, "the table that is joined")
    return frame.join(table, list(columns), how)


def map_partitions(
    label: str,
    function: Callable[[Iterator[Any]], Iterable[Any]],
    schema: str | StructType,
    pandas: bool,
    frame: DataFrame,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = declared_columns(schema)
    return map_in_arrow(frame, AuthorMap(label, function, columns, pandas), from_arrow_schema(columns))
