"""Which columns each stateless verb needs of its streams, by those that are needed of what it gives. Without Spark.

What is not understood needs all: a column too many costs time, one too few would fail every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from epochal.declarations.expressions import Expression
from epochal.declarations.references import columns_needed, is_star, renamed_column

Columns = frozenset[str] | None
"""Names, in small letters; ``None``: all, or not known."""
ColumnsOf = Callable[[Columns], Columns]
"""From what is needed of a verb's rows to what the verb needs for it."""

NO_COLUMNS: Columns = frozenset()


def together(*needed: Columns) -> Columns:
    found: set[str] = set()
    for columns in needed:
        if columns is None:
            return None
        found |= columns
    return frozenset(found)


def folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)


def filtered(condition: Expression) -> ColumnsOf:
    return lambda needed: together(needed, columns_needed([condition]))


def selected(columns: Sequence[Expression]) -> ColumnsOf:
    """Of columns that are handed on as they are, those that are needed."""

    def of(needed: Columns) -> Columns:
        if any(map(is_star, columns)):
            return None
        return columns_needed(column for column in columns if needed is None or _is_needed(column, needed))

    return of


def replaced(added: Mapping[str, Expression]) -> ColumnsOf:
    def of(needed: Columns) -> Columns:
        if needed is None:
            return None
        computed = [column for name, column in added.items() if name.casefold() in needed]
        return together(needed - folded(list(added)), columns_needed(computed))

    return of


def joined(columns: Sequence[str]) -> ColumnsOf:
    return lambda needed: together(needed, folded(columns))


def handed_on(needed: Columns) -> Columns:
    """Of what gives the columns that it reads."""
    return needed


def _is_needed(column: Expression, needed: frozenset[str]) -> bool:
    renamed = renamed_column(column)
    return renamed is None or renamed[1].casefold() in needed
