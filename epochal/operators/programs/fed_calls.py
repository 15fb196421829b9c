"""Programs with input streams: conversion of a stream's rows to calls of an entry, and of the output of the stages to
results. Both work on Spark frames and on Arrow tables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.names import require_columns
from epochal.errors import PipelineError
from epochal.operators.programs.calls import KEY, TIE, argument_name, kept_name, order_name
from epochal.operators.programs.ports import ERROR, PORT, Port
from epochal.state.type_names import quoted, type_name
from epochal.state.types import arrow_type, is_key_type, key_fix
from epochal.tasks.keys import spelled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_WIDENED: Mapping[str, tuple[str, ...]] = {"bigint": _INTEGERS, "double": ("float", "double", *_INTEGERS)}
"""By the type of a parameter, the other types of columns that it accepts."""


@dataclass(frozen=True, eq=False)
class FedCalls:
    """The calls of ``entry``, with ``number`` in its program. ``parameter_types``: types of its parameters;
    ``returns``: the type of its answers, if any; ``order``: the ``order_by`` columns; ``kept``: the columns that are
    returned with the result; ``key``: the number of the parameter that distributes calls, or a constant and its type;
    ``None``: any distribution.

    Raises ``PipelineError`` with entry, column and fix.
    """

    entry: str
    number: int
    parameter_types: Mapping[str, str]
    returns: str | None
    order: tuple[str, ...]
    kept: tuple[str, ...]
    key: int | tuple[Any, str] | None
    internal_rows: ClassVar[bool] = True

    def details(self) -> dict[str, Any]:
        """The description, as JSON."""
        return {"entry": self.entry, "parameters": dict(self.parameter_types), "returns": self.returns}

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        types = {field.name.casefold(): type_name(field.dataType) for field in frame.schema}
        self._check(list(frame.columns), types)
        chosen = [
            F.col(quoted(name)).cast(type).alias(argument_name(number))
            for number, (name, type) in enumerate(self.parameter_types.items())
        ]
        chosen += [F.col(quoted(name)).alias(order_name(number)) for number, name in enumerate(self.order)]
        chosen += [F.col(quoted(name)).alias(kept_name(self.number, number)) for number, name in enumerate(self.kept)]
        calls = frame.select(*chosen)
        calls = calls.withColumn(TIE, F.xxhash64(*map(F.col, calls.columns)))
        match self.key:
            case None:
                key = F.col(TIE)
            case (value, type):
                key = F.lit(value).cast(type)
            case number:
                key = F.col(argument_name(number))
        return calls.withColumn(KEY, key)

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        columns = {
            argument_name(number): rows[_named(rows, name)].cast(arrow_type(type))
            for number, (name, type) in enumerate(self.parameter_types.items())
        }
        columns |= {order_name(number): rows[_named(rows, name)] for number, name in enumerate(self.order)}
        columns |= {kept_name(self.number, number): rows[_named(rows, name)] for number, name in enumerate(self.kept)}
        said = zip(*(column.to_pylist() for column in columns.values()), strict=True) if columns else [()] * len(rows)
        columns[TIE] = pa.array(list(map(hash_of, said)), pa.int64())
        match self.key:
            case None:
                columns[KEY] = columns[TIE]
            case (value, type):
                columns[KEY] = pa.array([value] * rows.num_rows, arrow_type(type))
            case number:
                columns[KEY] = columns[argument_name(number)]
        return pa.table(columns)

    def _check(self, there: list[str], types: Mapping[str, str]) -> None:
        where = f"Entry {self.entry!r}"
        required = [*self.parameter_types, *self.order, *self.kept]
        try:
            require_columns(tuple(required), there, "the stream that feeds it")
        except PipelineError as error:
            raise PipelineError(
                f"{where}: {error.message} It needs a column for each parameter, and those of order_by and keep: "
                "rename a column, or add one."
            ) from None
        for name, type in self.parameter_types.items():
            found = types[name.casefold()]
            if found.replace(" ", "") not in (type, *_WIDENED.get(type, ())):
                cast = f"CAST({name} AS {type})"
                raise PipelineError(
                    f"{where}: parameter {name!r} is {type}, and the column of the stream that feeds it {found}. Cast "
                    f"it, with_columns({name}={cast!r})."
                )
        for name in self.order:
            if not is_key_type(types[name.casefold()]):
                raise PipelineError(
                    f"{where}, order_by: column {name!r} is {types[name.casefold()]}, which cannot order calls. "
                    f"{key_fix(types[name.casefold()])}"
                )
        for name in self.kept:
            if "map<" in types[name.casefold()] or "variant" in types[name.casefold()]:
                raise PipelineError(
                    f"{where}, keep: column {name!r} is {types[name.casefold()]}. Convert it to a string: to_json(..)."
                )


def _named(rows: pa.Table, name: str) -> str:
    return spelled(rows.column_names, (name,))[0]


def hash_of(said: Any) -> int:
    """A hash with 64 bits that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(said).encode(), digest_size=8).digest(), "big", signed=True)


@dataclass(frozen=True, eq=False)
class FedResults:
    """The results of an entry. ``kept``: by name of a returned column, its column in the stream."""

    port: Port
    kept: Mapping[str, str]

    @property
    def _columns(self) -> dict[str, str]:
        """The columns of the stream, by the names of the result's columns, in order."""
        values = dict(zip(self.port.names, self.port.columns, strict=True))
        return {**self.kept, **values, "error": ERROR}

    def __call__(self, frame: DataFrame) -> DataFrame:
        columns = (f"{column} AS {quoted(name)}" for name, column in self._columns.items())
        return frame.where(f"{PORT} = {self.port.number}").selectExpr(*columns)

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        chosen = rows.filter(pc.equal(rows[PORT], self.port.number))
        return chosen.select(list(self._columns.values())).rename_columns(list(self._columns))
