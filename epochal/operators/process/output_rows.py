"""The output rows of authors' functions, checked and converted to Arrow a column at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any

import pyarrow as pa

from epochal.declarations.names import closest, listed
from epochal.declarations.sides import To
from epochal.errors import SchemaError
from epochal.state.types import shown_type, with_spark_types
from epochal.tasks.task_output import OutputBatch, SideRows
from epochal.tasks.values import Unconvertible, arrow_values


class OutputRows:
    """Collects output rows, tuples in the output's order or mappings by its names, until they are taken as a batch.

    Rows of ``sides`` are collected separately. All errors are ``SchemaError`` with the operator and its declared
    schema.
    """

    def __init__(
        self, operator: str, schema: pa.Schema, sides: Mapping[str, pa.Schema] = {}, what: str = "output"
    ) -> None:
        self._operator = operator
        self._schema = schema
        self._what = what
        self._rows: list[Any] = []
        self._sides = {name: OutputRows(operator, columns, what=f"side {name!r}") for name, columns in sides.items()}

    def __len__(self) -> int:
        """The number of rows that were not taken yet, including those of sides."""
        return len(self._rows) + sum(map(len, self._sides.values()))

    def add(self, result: Iterable[Any] | None) -> None:
        """Add the rows that one call of the author's function returned or yields. Runs the author's generator."""
        if isinstance(result, (GeneratorType, list)):
            if self._sides:
                self._divide(result)
            else:
                self._rows.extend(result)
            return
        if result is None:
            return
        if isinstance(result, (tuple, str, bytes, Mapping)) or not isinstance(result, Iterable):
            raise SchemaError(
                f"{self._where()} must yield its output rows, or return a list; it returned {shortened(result)}."
            )
        OutputRows.add(self, list(result))

    def take(self) -> Iterator[OutputBatch]:
        """All rows since the last call, in order: a batch with the output schema, and one for each side with rows."""
        if self._rows:
            yield self._taken()
        for name, side in self._sides.items():
            if side._rows:
                yield SideRows(name, side._taken())

    def _divide(self, rows: Iterable[Any]) -> None:
        for row in rows:
            if type(row) is not To:
                self._rows.append(row)
                continue
            side = self._sides.get(row.side)
            if side is None:
                raise self._unknown(row)
            side._rows.append(row.row)

    def _unknown(self, row: To) -> SchemaError:
        what = f"{self._where()} sent a row to side {row.side!r}, {shortened(row.row)}"
        if not self._sides:
            example = f'sides = {{"{row.side}": "column type, .."}}'
            return SchemaError(f"{what}, but its class declares no side outputs: add {example} to it.")
        near = closest(str(row.side), self._sides)
        return SchemaError(f"{what}; its class declares the sides {listed(self._sides)}.{near}")

    def _taken(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        columns = self._columns(rows)
        arrays = [self._array(field, values) for field, values in zip(self._schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _columns(self, rows: list[Any]) -> Sequence[Sequence[Any]]:
        if not rows:
            return [()] * len(self._schema)
        kinds = set(map(type, rows))
        if all(issubclass(kind, (tuple, list)) for kind in kinds):
            if set(map(len, rows)) == {len(self._schema)}:
                return list(zip(*rows, strict=True))
            wrong = next(row for row in rows if len(row) != len(self._schema))
            raise SchemaError(
                f"{self._where()} yielded a row of {len(wrong)} values, {shortened(wrong)}. {self._declared()}"
            )
        return list(zip(*(self._by_position(row) for row in rows), strict=True))

    def _by_position(self, row: Any) -> Sequence[Any]:
        if isinstance(row, (tuple, list)) and len(row) == len(self._schema):
            return row
        if isinstance(row, To):
            raise self._unknown(row)
        if not isinstance(row, Mapping):
            kind = "an output row" if self._what == "output" else f"a row of {self._what}"
            raise SchemaError(f"{self._where()} yielded {shortened(row)}, which is not {kind}. {self._declared()}")
        unknown = [name for name in row if name not in self._schema.names]
        missing = [name for name in self._schema.names if name not in row]
        if unknown or missing:
            what = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(map(str, unknown))}"] * bool(
                unknown
            )
            raise SchemaError(
                f"{self._where()} yielded a row that {' and '.join(what)}: {shortened(row)}. {self._declared()}"
            )
        return [row[name] for name in self._schema.names]

    def _array(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        try:
            return arrow_values(values, field.type)
        except Unconvertible as wrong:
            raise SchemaError(
                f"{self._where()} yielded {wrong.shown} ({wrong.found}) for {self._what} column {field.name!r}, which "
                f"is {shown_type(field.type)}: {wrong}. {self._declared()}"
            ) from None

    def _where(self) -> str:
        return f"Operator {self._operator!r}: its function"

    def _declared(self) -> str:
        return f"Its {self._what} is declared as: {schema_text(self._schema)}."


def given_in_parts(result: Iterable[Any] | None, rows: int) -> Iterator[Iterable[Any] | None]:
    """The rows of an author's generator in parts of ``rows`` rows; any other result unchanged."""
    if not isinstance(result, GeneratorType):
        yield result
        return
    while part := list(islice(result, rows)):
        yield part


def schema_text(schema: pa.Schema) -> str:
    """``origin string, streak int``: the columns of a schema in a message."""
    return ", ".join(f"{field.name} {shown_type(field.type)}" for field in schema)


def checked_tables(
    operator: str, result: Any, schema: pa.Schema, sides: Mapping[str, pa.Schema]
) -> Iterator[tuple[str | None, pa.Table]]:
    """The tables that a ``process_batch`` function returned, each with exactly the columns of its side.

    The side ``None`` is the output. Raises ``SchemaError``.
    """
    for part in result if _several(result) else [result]:
        if not isinstance(part, To):
            yield None, checked_table(operator, part, schema)
        elif part.side not in sides:
            raise OutputRows(operator, schema, sides)._unknown(part)
        else:
            yield part.side, checked_table(operator, part.row, sides[part.side], f"side {part.side!r}")


def _several(result: Any) -> bool:
    """True if a result is a list of tables; a list of other objects is a single, invalid result."""
    tables = (To, pa.Table, pa.RecordBatch)
    return isinstance(result, (list, tuple)) and (not result or any(isinstance(each, tables) for each in result))


def checked_table(operator: str, result: Any, schema: pa.Schema, what: str = "output") -> pa.Table:
    """The result of a ``process_batch`` function as a table with exactly ``schema``. Raises ``SchemaError``."""
    if result is None:
        return schema.empty_table()
    where = f"Operator {operator!r}: its function"
    declared = f"Its {what} is declared as: {schema_text(schema)}."
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table):
        raise SchemaError(f"{where} must return a pyarrow.Table; it returned {shortened(result)}. {declared}")
    return fitted(where, result, schema, declared)


def fitted(where: str, result: pa.Table, schema: pa.Schema, declared: str) -> pa.Table:
    """``result`` with exactly the columns ``schema``. Raises ``SchemaError`` that begins with ``where``."""
    if sorted(result.column_names) != sorted(schema.names):
        raise SchemaError(f"{where} returned the columns {', '.join(result.column_names) or '(none)'}. {declared}")
    columns = []
    for field in schema:
        try:
            columns.append(result.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"{where} returned column {field.name!r} as {shown_type(result.column(field.name).type)}: "
                f"{with_spark_types(error)}. {declared}"
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)


def shortened(value: Any) -> str:
    """The text of a value in a message."""
    shown = repr(value)
    return f"{shown[:97]}..." if len(shown) > 100 else shown
