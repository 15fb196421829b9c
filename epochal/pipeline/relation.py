"""Streams and tables: lazy DataFrames, whose stateless verbs add nodes to the pipeline's graph.

Strings are Spark SQL expressions; expressions of :mod:`epochal.functions` do as well. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.names import listed
from epochal.errors import PipelineError
from epochal.pipeline import stream_joins, verb_columns, verb_kinds, verbs
from epochal.pipeline.graph import NodeId, TransformNode, counts_hops
from epochal.pipeline.maps_batches import MapsBatches
from epochal.pipeline.other_names import TABLE, NamesVerbs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from epochal.pipeline.pipeline import Builder

JoinKind = Literal["inner", "left", "left_semi", "left_anti"]
_JOINS = ("inner", "left", "left_semi", "left_anti")


class Relation(NamesVerbs, MapsBatches):
    """The stateless verbs, which streams and tables share. Each gives a new relation and leaves this one as it is."""

    def __init__(self, builder: Builder, node: NodeId) -> None:
        self._builder = builder
        self._node = node

    def select(self, *columns: str | Expression) -> Self:
        """These columns: ``select("origin", "delay / 60 AS hours", F.upper("tail").alias("tail"))``."""
        if not columns:
            raise PipelineError("select() needs at least one column.")
        chosen = tuple(as_expression(f"select: column {number}", column) for number, column in enumerate(columns, 1))
        label = f"select({listed(map(str, chosen))})"
        return self._transformed(
            label,
            partial(verbs.select, chosen),
            verb_kinds.selected(chosen),
            expressions=chosen,
            carrying=partial(verbs.select_carrying, chosen),
            columns_of=verb_columns.selected(chosen),
        )

    def where(self, condition: str | Expression) -> Self:
        """The rows for which ``condition`` is true (not false, not null)."""
        chosen = as_expression("where: the condition", condition)
        function, kind_of = partial(verbs.where, chosen), verb_kinds.filtered(chosen)
        return self._transformed(
            f"where({chosen})",
            function,
            kind_of,
            expressions=(chosen,),
            carrying=function,
            columns_of=verb_columns.filtered(chosen),
        )

    filter = where

    def with_columns(self, **columns: str | Expression) -> Self:
        """Add or replace columns, all computed from the columns there are now."""
        if not columns:
            raise PipelineError("with_columns() needs at least one column: with_columns(hours='delay / 60').")
        added = {name: as_expression(f"with_columns: {name}", column) for name, column in columns.items()}
        computed, expressions = partial(verbs.with_columns, added), tuple(added.values())
        kind_of = verb_kinds.replaced(tuple(added), expressions)
        label = f"with_columns({', '.join(added)})"
        return self._transformed(
            label,
            computed,
            kind_of,
            expressions=expressions,
            carrying=computed,
            columns_of=verb_columns.replaced(added),
        )

    def with_column(self, name: str, column: str | Expression) -> Self:
        """Add or replace one column."""
        return self.with_columns(**{name: column})

    def drop(self, *columns: str) -> Self:
        """All columns but these, which must be there."""
        function, kind_of = partial(verbs.drop, columns), verb_kinds.dropped(columns)
        label, columns_of = f"drop({', '.join(columns)})", verb_columns.handed_on
        return self._transformed(label, function, kind_of, carrying=function, columns_of=columns_of)

    def transform(
        self, function: Callable[[DataFrame], DataFrame], label: str | None = None, *, per_epoch: bool = False
    ) -> Self:
        """Any function from DataFrame to DataFrame that computes row by row, called with the rows of one epoch.

        It keeps nothing from before. A function that aggregates, ranks, limits or joins the rows of a stream among
        themselves is refused by the analysis. ``per_epoch=True`` allows it: the function then sees the rows of one
        epoch at a time, and its results depend on where epochs are cut, which changes with the load, with the
        configuration and after a failure.
        """
        if not callable(function):
            raise PipelineError(f"transform() takes a function from DataFrame to DataFrame, not {function!r}.")
        if not isinstance(per_epoch, bool):
            raise PipelineError(f"transform(): per_epoch is True or False, not {per_epoch!r}.")
        name = label or getattr(function, "__name__", type(function).__name__)
        written = f"transform({name}, per_epoch=True)" if per_epoch else f"transform({name})"
        return self._transformed(written, function, verb_kinds.by_author, by_author=True, per_epoch=per_epoch)

    def union(self, *others: Self) -> Self:
        """All rows of these relations; columns are matched by name."""
        for other in others:
            self._check_same_pipeline(other, "union")
            if isinstance(other, StaticTable) != isinstance(self, StaticTable):
                raise PipelineError(
                    "A table cannot be united with a stream: its rows would come again in every epoch. Use join()."
                )
        nodes = [other._node for other in others]
        hops = counts_hops(self._builder.nodes, [self._node, *nodes])
        function = verbs.union_with_hops if hops else verbs.union
        return self._transformed("union", function, verb_kinds.united, *nodes, columns_of=verb_columns.handed_on)

    def join(self, other: StaticTable, on: str | Sequence[str], how: JoinKind = "inner") -> Self:
        """Join each row with the rows of the table ``other`` that are equal in the columns ``on``, which both have.

        New values of keys (what ``aggregate`` gives) stay so in a left join: for them the table should have at most one
        row for each row of the stream.
        """
        columns = stream_joins.key_columns(on)
        if not isinstance(other, StaticTable):
            raise PipelineError(
                f"join() of a table takes a table of this pipeline (pipeline.table(..)), not {type(other).__name__}: "
                "join the stream with the table."
            )
        self._check_same_pipeline(other, "join")
        if how not in _JOINS:
            raise PipelineError(f"join() cannot be {how!r}: how is one of {listed(_JOINS)}.")
        function, kind_of = partial(verbs.join, columns, how), verb_kinds.joined(how)
        label, columns_of = f"join({', '.join(columns)})", verb_columns.joined(columns)
        return self._transformed(label, function, kind_of, other._node, carrying=function, columns_of=columns_of)

    def _transformed(
        self,
        label: str,
        function: Callable[..., DataFrame],
        kind_of: verb_kinds.KindOf,
        *others: NodeId,
        expressions: tuple[Expression, ...] = (),
        by_author: bool = False,
        carrying: Callable[..., DataFrame] | None = None,
        columns_of: verb_columns.ColumnsOf | None = None,
        per_epoch: bool = False,
    ) -> Self:
        inputs = (self._node, *others)
        node = self._builder.add(
            lambda id: TransformNode(
                id, label, inputs, function, kind_of, expressions, by_author, carrying, columns_of, per_epoch
            )
        )
        return self._of(node)

    def _of(self, node: NodeId) -> Self:
        """What a verb gives."""
        return type(self)(self._builder, node)

    def _check_same_pipeline(self, other: Any, verb: str) -> None:
        if not isinstance(other, Relation):
            raise PipelineError(f"{verb}() takes a stream or table of this pipeline, not {other!r}.")
        if other._builder is not self._builder:
            raise PipelineError(f"{verb}() takes a stream or table of the same pipeline; this one is of another.")


class StaticTable(Relation):
    """A table that does not stream. It is read once in each attempt, and can be joined with streams."""

    _other_names = TABLE
