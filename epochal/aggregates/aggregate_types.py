"""Types of aggregates and of their arguments, for all columns of an operator in a few analyses by Spark.

An analysis takes milliseconds for any number of columns, while one analysis per column would take minutes for an
operator with a thousand aggregates. Columns are analysed one by one only if the analysis of all columns fails, to name
the failing column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from epochal.aggregates.mergeable import MergeableAggregate
from epochal.declarations.expressions import Expression, to_column
from epochal.declarations.spark_errors import at
from epochal.errors import PipelineError
from epochal.state.type_names import type_name

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


_PASSES: Final = 3
"""Maximum number of passes. Further types that an aggregate needs are analysed separately."""


class _TypeNeeded(BaseException):
    """An aggregate needs the type of an expression. A BaseException, so that authors' code does not catch it."""

    def __init__(self, expression: Expression) -> None:
        super().__init__()
        self.expression = expression


class AggregateTypes:
    """Types of expressions over the rows of ``frame``."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._known: dict[int, tuple[Expression, str]] = {}
        """Types of arguments by identity, since the text of an expression does not distinguish author functions."""

    def resolved(
        self, wheres: Sequence[str], aggregates: Sequence[Sequence[MergeableAggregate]]
    ) -> list[list[MergeableAggregate]]:
        """Aggregates of each column with resolved types of arguments.

        ``wheres``: prefix of error messages by column. Each pass finds the next type that each aggregate needs.
        """
        found: dict[tuple[int, int], MergeableAggregate] = {}
        places = [(column, number) for column, each in enumerate(aggregates) for number in range(len(each))]
        for number in range(_PASSES + 1):
            type_of = self._type_of if number < _PASSES else self._asked_alone
            asked: list[tuple[str, Expression]] = []
            for place in places:
                if place not in found:
                    with at(wheres[place[0]]):
                        try:
                            found[place] = aggregates[place[0]][place[1]].resolved(type_of)
                        except _TypeNeeded as question:
                            asked.append((wheres[place[0]], question.expression))
            types = self._types([where for where, _ in asked], [each for _, each in asked], self._frame.select)
            self._known.update((id(each), (each, type)) for (_, each), type in zip(asked, types, strict=True))
        return [[found[column, number] for number in range(len(each))] for column, each in enumerate(aggregates)]

    def of_aggregates(self, wheres: Sequence[str], expressions: Sequence[Expression | None]) -> list[str | None]:
        """Type of each aggregate; ``None`` for ``None``."""
        some = [(where, each) for where, each in zip(wheres, expressions, strict=True) if each is not None]
        types = iter(self._types([where for where, _ in some], [each for _, each in some], self._frame.agg))
        return [None if each is None else next(types) for each in expressions]

    def _type_of(self, expression: Expression) -> str:
        if id(expression) not in self._known:
            raise _TypeNeeded(expression)
        return self._known[id(expression)][1]

    def _asked_alone(self, expression: Expression) -> str:
        """Type for an author's aggregate that creates a new expression at each call."""
        return _analysed([expression], self._frame.select)[0]

    def _types(
        self, wheres: Sequence[str], expressions: Sequence[Expression], over: Callable[..., DataFrame]
    ) -> list[str]:
        from pyspark.errors import PySparkException

        if not expressions:
            return []
        with suppress(PipelineError, PySparkException):
            return _analysed(expressions, over)
        types: list[str] = []
        for where, expression in zip(wheres, expressions, strict=True):
            with at(where):
                types += _analysed([expression], over)
        return types


def _analysed(expressions: Sequence[Expression], over: Callable[..., DataFrame]) -> list[str]:
    columns: list[SparkColumn] = [
        to_column(expression).alias(f"_{number}") for number, expression in enumerate(expressions)
    ]
    return [type_name(field.dataType) for field in over(*columns).schema]
