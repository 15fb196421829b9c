"""States, output and side outputs that an author's class declares, for the operators that call such classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.declarations.names import listed, require_columns
from epochal.declarations.reconcile import Reconcile
from epochal.declarations.schemas import RESERVED, carried_schema
from epochal.declarations.sides import declared_sides
from epochal.declarations.spark_errors import at
from epochal.declarations.state import declared_states
from epochal.errors import PipelineError
from epochal.state.table import Column, StateTable
from epochal.state.type_names import quoted, split_outside_brackets
from epochal.state.types import nullable_within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FIRST_NAME = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))")


def declared_tables(operator: str, author: type, key: tuple[Column, ...], frame: DataFrame) -> tuple[StateTable, ...]:
    """The state tables of the author's class over an input, each named ``operator.state``.

    Raises ``PipelineError`` or ``SchemaError`` with operator and fix.
    """
    names = {column.name.casefold() for column in key}
    tables = []
    with at(f"Operator {operator!r}"):
        carried_schema(frame.schema)
        for state in declared_states(author).values():
            table = state.table(operator, key)
            used = set(names)
            for column in (*table.sub_key, *table.value):
                if column.name.casefold() in used:
                    raise PipelineError(
                        f"state {state.name!r} has a column {column.name!r}, but the key or the state already has a "
                        "column with this name. Rename it."
                    )
                used.add(column.name.casefold())
            tables.append(table)
    return tuple(tables)


def declared_reconciles(operator: str, author: type) -> dict[str, Reconcile]:
    """The author's functions that reconcile two instances, by state table."""
    states = declared_states(author).values()
    return {f"{operator}.{state.name}": state.reconcile for state in states if callable(state.reconcile)}


def growing_states(author: type, how: str) -> str | None:
    """``Operator.grows`` for the keyed states of the author's class. ``how``: the declaration that bounds a state."""
    states = [state for state in declared_states(author).values() if state.scope.has_key and state.expires is None]
    if not states:
        return None
    one = len(states) == 1
    return (
        f"keeps state {listed(repr(state.name) for state in states)} of a key until it is cleared. If the number of "
        f"keys is unbounded, clear {'it' if one else 'them'}, or declare {'it' if one else 'them'} {how}."
    )


def declared_output(operator: str, declared: str | StructType) -> pa.Schema:
    """The columns of the author's ``output``, parsed by Spark, all of them nullable as in a task's rows.

    Raises ``PipelineError`` with operator and fix.
    """
    with at(f"Operator {operator!r}, output {declared!r}"):
        return declared_columns(declared)


def side_outputs(operator: str, author: type) -> dict[str, pa.Schema]:
    """The columns of each side of the author's class, as in :func:`declared_output`. Raises ``PipelineError``."""
    found = {}
    for name, declared in declared_sides(author).items():
        with at(f"Operator {operator!r}, side {name!r} {declared!r}"):
            found[name] = declared_columns(declared)
    return found


def declared_columns(declared: str | StructType) -> pa.Schema:
    """Columns that an author declares, all of them nullable. Raises ``PipelineError`` with the fix."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(declared) if isinstance(declared, str) else declared
    if not isinstance(schema, StructType):
        raise PipelineError("give 'column type, ..' or a StructType.")
    seen: set[str] = set()
    for name in schema.names:
        if name.casefold() in seen:
            raise PipelineError(f"it names column {name!r} twice.")
        if name.casefold() in RESERVED:
            raise PipelineError(f"column {name!r} has a name that is reserved for Epochal. Rename it.")
        seen.add(name.casefold())
    return nullable(carried_schema(schema))


def output_names(declared: str | StructType) -> list[str]:
    """The column names of an ``output``, parsed without Spark. An invalid ``output`` is parsed as far as possible."""
    if not isinstance(declared, str):
        return list(declared.names)
    found = (_FIRST_NAME.match(part) for part in split_outside_brackets(declared))
    return [(name["quoted"] or name["plain"]).replace("``", "`") for name in found if name]


def nullable(columns: pa.Schema) -> pa.Schema:
    """The same columns, all nullable: they are null in the rows of a task that contain handles."""
    return pa.schema([pa.field(field.name, nullable_within(field.type)) for field in columns])


def check_order(operator: str, columns: Sequence[str], frame: DataFrame, nested: bool = True) -> None:
    """Check that the columns of ``order_by`` exist and can be sorted. ``nested``: allow arrays and structs, as Spark.

    Raises ``PipelineError``.
    """
    unordered = ("map", "variant") if nested else ("map", "variant", "array", "struct")
    with at(f"Operator {operator!r}, order_by"):
        require_columns(tuple(columns), frame.columns)
        for name in columns:
            if frame.select(quoted(name)).dtypes[0][1].startswith(unordered):
                raise PipelineError(f"column {name!r} cannot be sorted by. Order by another, or by a field of it.")
