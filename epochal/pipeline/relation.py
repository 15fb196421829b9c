"""Streams and tables: lazy DataFrames, whose stateless verbs add nodes to the pipeline's graph.

Strings are Spark SQL expressions; expressions of :mod:`epochal.functions` are accepted too. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.names import listed
from epochal.errors import PipelineError
from epochal.operators.contract import Operator
from epochal.pipeline import column_use, kinds, verbs
from epochal.pipeline.graph import Builder, ColumnsOf, KindOf, NodeId, OperatorNode, TransformNode, counts_hops
from epochal.pipeline.other_names import TABLE, NamesVerbs
from epochal.pipeline.parallelism import declared_parallelism

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

JoinKind = Literal["inner", "left", "left_semi", "left_anti"]
_JOINS = ("inner", "left", "left_semi", "left_anti")


class Relation(NamesVerbs):
    """The stateless verbs of streams and tables. Each verb returns a new relation and does not change this one."""

    def __init__(self, builder: Builder, node: NodeId) -> None:
        self._builder = builder
        self._node = node

    def select(self, *columns: str | Expression) -> Self:
        """Select columns: ``select("origin", "delay / 60 AS hours", F.upper("tail").alias("tail"))``."""
        if not columns:
            raise PipelineError("select() requires at least one column.")
        chosen = tuple(as_expression(f"select: column {number}", column) for number, column in enumerate(columns, 1))
        label = f"select({listed(map(str, chosen))})"
        return self._transformed(
            label,
            partial(verbs.select, chosen),
            kinds.selected(chosen),
            expressions=chosen,
            carrying=partial(verbs.select_carrying, chosen),
            columns_of=column_use.selected(chosen),
        )

    def where(self, condition: str | Expression) -> Self:
        """Keep the rows for which ``condition`` is true. Rows for which it is false or null are removed."""
        chosen = as_expression("where: the condition", condition)
        function, kind_of = partial(verbs.where, chosen), kinds.filtered(chosen)
        return self._transformed(
            f"where({chosen})",
            function,
            kind_of,
            expressions=(chosen,),
            carrying=function,
            columns_of=column_use.filtered(chosen),
        )

    filter = where

    def with_columns(self, **columns: str | Expression) -> Self:
        """Add or replace columns. All expressions are evaluated on the input columns."""
        if not columns:
            raise PipelineError("with_columns() requires at least one column: with_columns(hours='delay / 60').")
        added = {name: as_expression(f"with_columns: {name}", column) for name, column in columns.items()}
        computed, expressions = partial(verbs.with_columns, added), tuple(added.values())
        kind_of = kinds.replaced(tuple(added), expressions)
        label = f"with_columns({', '.join(added)})"
        return self._transformed(
            label,
            computed,
            kind_of,
            expressions=expressions,
            carrying=computed,
            columns_of=column_use.replaced(added),
        )

    def with_column(self, name: str, column: str | Expression) -> Self:
        """Add or replace one column."""
        return self.with_columns(**{name: column})

    def drop(self, *columns: str) -> Self:
        """Remove columns. A column that does not exist is an error."""
        function, kind_of = partial(verbs.drop, columns), kinds.dropped(columns)
        label, columns_of = f"drop({', '.join(columns)})", column_use.unchanged
        return self._transformed(label, function, kind_of, carrying=function, columns_of=columns_of)

    def transform(
        self, function: Callable[[DataFrame], DataFrame], label: str | None = None, *, per_epoch: bool = False
    ) -> Self:
        """Apply a function from DataFrame to DataFrame that computes row by row. It gets the rows of one epoch.

        The function keeps no state between epochs. Analysis refuses a function that aggregates, ranks, limits or joins
        the rows of a stream with each other. ``per_epoch=True`` allows it: the function then sees the rows of one epoch
        at a time, and its results depend on the epoch boundaries, which change with the load, with the configuration
        and after a failure.
        """
        if not callable(function):
            raise PipelineError(f"transform() takes a function from DataFrame to DataFrame, not {function!r}.")
        if not isinstance(per_epoch, bool):
            raise PipelineError(f"transform(): per_epoch must be True or False, not {per_epoch!r}.")
        name = label or getattr(function, "__name__", type(function).__name__)
        written = f"transform({name}, per_epoch=True)" if per_epoch else f"transform({name})"
        return self._transformed(written, function, kinds.by_author, by_author=True, per_epoch=per_epoch)

    def map_arrow(
        self,
        function: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        schema: str | StructType,
        label: str | None = None,
    ) -> Self:
        """Apply a function over Arrow, as Spark's ``mapInArrow`` does. It gets the record batches of a part of an
        epoch's rows and yields record batches with the columns ``schema``.

        The function keeps no state between calls. Its result must not depend on batch boundaries or on the order of
        the rows.
        """
        return self._mapped("map_arrow", function, schema, label, pandas=False)

    def map_pandas(
        self,
        function: Callable[[Iterator[pd.DataFrame]], Iterable[pd.DataFrame]],
        schema: str | StructType,
        label: str | None = None,
    ) -> Self:
        """Same as :meth:`map_arrow`, from and to pandas DataFrames. Timestamps are in UTC."""
        return self._mapped("map_pandas", function, schema, label, pandas=True)

    def union(self, *others: Self) -> Self:
        """All rows of these relations. Columns are matched by name."""
        for other in others:
            self._check_same_pipeline(other, "union")
            if isinstance(other, StaticTable) != isinstance(self, StaticTable):
                raise PipelineError(
                    "A table cannot be united with a stream: its rows would be repeated in every epoch. Use join()."
                )
        nodes = [other._node for other in others]
        hops = counts_hops(self._builder.nodes, [self._node, *nodes])
        function = verbs.union_with_hops if hops else verbs.union
        return self._transformed("union", function, kinds.united, *nodes, columns_of=column_use.unchanged)

    def join(self, other: StaticTable, on: str | Sequence[str], how: JoinKind = "inner") -> Self:
        """Join each row with the rows of the table ``other`` that have equal values in the columns ``on``.

        Both sides have the columns ``on``. An upsert stream (such as the output of ``aggregate``) remains an upsert
        stream in a left join; the table should then have at most one matching row for each row of the stream.
        """
        columns = key_columns(on)
        if not isinstance(other, StaticTable):
            raise PipelineError(
                f"join() of a table takes a table of this pipeline (pipeline.table(..)), not {type(other).__name__}: "
                "join the stream with the table."
            )
        self._check_same_pipeline(other, "join")
        if how not in _JOINS:
            raise PipelineError(f"join() with a table cannot be {how!r}: how must be one of {listed(_JOINS)}.")
        function, kind_of = partial(verbs.join, columns, how), kinds.joined(how)
        label, columns_of = f"join({', '.join(columns)})", column_use.joined(columns)
        return self._transformed(label, function, kind_of, other._node, carrying=function, columns_of=columns_of)

    def _mapped(self, verb: str, function: Any, schema: str | StructType, label: str | None, pandas: bool) -> Self:
        if not callable(function):
            raise PipelineError(f"{verb}() takes a function from batches to batches, not {function!r}.")
        name = f"{verb}({label or getattr(function, '__name__', type(function).__name__)})"
        mapped = partial(verbs.map_partitions, name, function, schema, pandas)
        return self._transformed(name, mapped, kinds.by_author, by_author=True)

    def _transformed(
        self,
        label: str,
        function: Callable[..., DataFrame],
        kind_of: KindOf,
        *others: NodeId,
        expressions: tuple[Expression, ...] = (),
        by_author: bool = False,
        carrying: Callable[..., DataFrame] | None = None,
        columns_of: ColumnsOf | None = None,
        per_epoch: bool = False,
    ) -> Self:
        inputs = (self._node, *others)
        node = self._builder.add(
            lambda id: TransformNode(
                id, label, inputs, function, kind_of, expressions, by_author, carrying, columns_of, per_epoch
            )
        )
        return self._of(node)

    def _operator(self, operator: Operator, *others: Relation, parallelism: int | None = None) -> Self:
        """Add an operator whose inputs are this relation and ``others``. ``parallelism``: its number of subtasks."""
        inputs = (self._node, *(other._node for other in others))
        number = declared_parallelism(operator.name, parallelism)
        self._builder.claim("operator", operator.name)
        return self._of(self._builder.add(lambda id: OperatorNode(id, inputs, operator, number)))

    def _of(self, node: NodeId) -> Self:
        """The relation that a verb returns."""
        return type(self)(self._builder, node)

    def _check_same_pipeline(self, other: Any, verb: str) -> None:
        if not isinstance(other, Relation):
            raise PipelineError(f"{verb}() takes a stream or table of this pipeline, not {other!r}.")
        if other._builder is not self._builder:
            raise PipelineError(
                f"{verb}() takes a stream or table of the same pipeline; this one belongs to another pipeline."
            )


class StaticTable(Relation):
    """A table that does not stream. Each attempt reads it once, or again after ``refresh``. Streams can join it."""

    _other_names = TABLE


def key_columns(on: object, otherwise: str = "") -> tuple[str, ...]:
    """The columns of a join key. Raises ``PipelineError``, with the text ``otherwise`` if there are no columns."""
    columns = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Sequence) else ()
    if not columns or not all(isinstance(name, str) and name for name in columns):
        raise PipelineError(
            otherwise or "join() requires the names of the columns that are equal on both sides: on='origin'."
        )
    if len({name.casefold() for name in columns}) < len(columns):
        raise PipelineError(f"join() on {listed(columns)} names a column twice.")
    return columns
