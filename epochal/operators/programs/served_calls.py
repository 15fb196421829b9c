"""Programs that are called from outside: conversion of the application's calls to calls of their entries, and of the
output of the stages to answers. Both work on Spark frames and on Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.entry import Entry
from epochal.operators.entries.plan import EntryCalls, answer_frame, answer_table
from epochal.operators.programs.calls import ENTRY, KEY, SERVED_KEPT, argument_name
from epochal.operators.programs.fed_calls import hash_of
from epochal.operators.programs.ports import ERROR, PORT, Port
from epochal.state.json_form import to_json
from epochal.state.type_names import quoted
from epochal.state.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ServedCalls:
    """The calls of an entry that is called from outside. ``entry``: its declaration in the application; ``name``,
    ``number``: those in its program; ``key``: the name of the argument that distributes calls, or a constant and its
    type; ``None``: any distribution."""

    entry: Entry
    name: str
    number: int
    key: str | tuple[Any, str] | None

    def details(self) -> dict[str, Any]:
        """The description, as JSON."""
        parameters = {column.name: column.type for column in self.entry.arguments}
        return {"entry": self.name, "parameters": parameters, "returns": self.entry.returns}


@dataclass(frozen=True, eq=False)
class ServedStream:
    """The calls from outside of ``entries`` with the same distribution, as one stream. Spark reads it once. Arguments
    share columns by type, so that the number of columns is that of the widest entry."""

    entries: tuple[ServedCalls, ...]
    internal_rows: ClassVar[bool] = True

    def details(self) -> dict[str, Any]:
        """The description, as JSON."""
        return {"served": [each.details() for each in self.entries]}

    @cached_property
    def arguments(self) -> dict[str, dict[str, str]]:
        """The columns of arguments, by the name of the entry in its program and the name of the argument."""
        found, _ = self._shared
        return found

    @cached_property
    def _shared(self) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """The :attr:`arguments`, and the types of their columns."""
        types: dict[str, str] = {}
        found = {}
        for each in self.entries:
            taken: dict[str, str] = {}
            for argument in each.entry.arguments:
                free = (name for name, type in types.items() if type == argument.type and name not in taken.values())
                name = next(free, argument_name(len(types)))
                types[name] = argument.type
                taken[argument.name] = name
            found[each.name] = taken
        return found, types

    def __call__(self, frame: DataFrame) -> DataFrame:
        shared, (request_id, sequence) = self._in_source, SERVED_KEPT
        numbers = " ".join(f"WHEN '{each.entry.name}' THEN {each.number}" for each in self.entries)
        names = ", ".join(f"'{each.entry.name}'" for each in self.entries)
        keys = {each: self._key(each) for each in self.entries}
        key = keys[self.entries[0]]
        if len(set(keys.values())) > 1:
            of_each = " ".join(f"WHEN '{each.entry.name}' THEN {found}" for each, found in keys.items())
            key = f"CASE entry {of_each} END"
        return frame.where(f"entry IN ({names})").selectExpr(
            f"CASE entry {numbers} END AS {ENTRY}", *(f"{found} AS {name}" for name, found in shared.items()),
            f"request_id AS {request_id}", f"sequence AS {sequence}", f"{key} AS {KEY}",
        )  # fmt: skip

    @cached_property
    def _in_source(self) -> dict[str, str]:
        """The SQL expression of each column over the source, in which the arguments of other entries are null."""
        found: dict[str, list[str]] = {name: [] for name in self._shared[1]}
        for each in self.entries:
            carried = EntryCalls(each.entry).carried.names
            for column, source in zip(self.arguments[each.name].values(), carried, strict=True):
                found[column].append(quoted(source))
        return {name: f"coalesce({', '.join(sources)})" for name, sources in found.items()}

    def _key(self, each: ServedCalls) -> str:
        match each.key:
            case None:
                return "xxhash64(sequence)"
            case (value, type):
                return f"CAST({_literal(value)} AS {type})"
            case name:
                return self._in_source[self.arguments[each.name][name]]

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table with the columns ``CALL_SCHEMA``."""
        return pa.concat_tables([self._table_of(each, rows) for each in self.entries])

    def _table_of(self, each: ServedCalls, rows: pa.Table) -> pa.Table:
        own = EntryCalls(each.entry).table(rows)
        count = own.num_rows
        taken = {column: own[name] for name, column in self.arguments[each.name].items()}
        columns: dict[str, Any] = {ENTRY: pa.repeat(pa.scalar(each.number, pa.int32()), count)}
        for name, type in self._shared[1].items():
            columns[name] = taken.get(name, pa.nulls(count, arrow_type(type)))
        columns |= dict(zip(SERVED_KEPT, (own["request_id"], own["sequence"]), strict=True))
        match each.key:
            case None:
                columns[KEY] = pa.array([hash_of(number) for number in own["sequence"].to_pylist()], pa.int64())
            case (value, type):
                columns[KEY] = pa.array([value] * count, arrow_type(type))
            case name:
                columns[KEY] = taken[self.arguments[each.name][name]]
        return pa.table(columns)


def _literal(value: Any) -> str:
    """The SQL literal of a program's constant."""
    match value:
        case bool() | int():
            return str(value)
        case bytes():
            return f"X'{value.hex()}'"
        case _:
            return f"CAST(X'{str(value).encode().hex()}' AS STRING)"


@dataclass(frozen=True)
class ServedAnswer:
    """The port with the answers of an entry that is called from outside by ``name``. ``returns``: the type of its
    answers, if any."""

    name: str
    port: Port
    returns: str | None


@dataclass(frozen=True, eq=False)
class ServedAnswers:
    """The answers of a program's entries that are called from outside, as one stream, so that the program's output has
    one reader and need not be cached. ``ttl``: the time for which answers are stored.

    A program answers a call in the epoch that reads it, so that its answer also records the call.
    """

    entries: tuple[ServedAnswer, ...]
    ttl: str

    @property
    def kept(self) -> Mapping[str, str]:
        """By entry, the time for which its answers are stored."""
        return {each.name: self.ttl for each in self.entries}

    def __call__(self, frame: DataFrame) -> DataFrame:
        numbers = ", ".join(str(each.port.number) for each in self.entries)
        names = self._by_port({each: f"'{each.name}'" for each in self.entries})
        values = self._by_port({each: _json_of(each.port) for each in self.entries})
        request_id, sequence = SERVED_KEPT
        value = f"IF({ERROR} IS NULL, {values}, NULL)"
        return answer_frame(frame.where(f"{PORT} IN ({numbers})"), names, request_id, sequence, value, ERROR)

    @staticmethod
    def _by_port(of: Mapping[ServedAnswer, str]) -> str:
        return f"CASE {PORT} {' '.join(f'WHEN {each.port.number} THEN {text}' for each, text in of.items())} END"

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        parts = [self._table_of(each, rows) for each in self.entries]
        return pa.concat_tables(parts)

    @staticmethod
    def _table_of(entry: ServedAnswer, rows: pa.Table) -> pa.Table:
        chosen = rows.filter(pc.equal(rows[PORT], entry.port.number))
        errors = chosen[ERROR].to_pylist()
        if entry.returns is None:
            forms: list[Any] = [None] * chosen.num_rows
        else:
            forms = [to_json(value, entry.returns) for value in chosen[entry.port.columns[0]].to_pylist()]
        shown = [json.dumps(form) if error is None else None for form, error in zip(forms, errors, strict=True)]
        request_id, sequence = (chosen[name] for name in SERVED_KEPT)
        columns = [request_id, sequence, pa.array(shown, pa.string()), chosen[ERROR]]
        names = pa.repeat(pa.scalar(entry.name), chosen.num_rows)
        return answer_table(names, pa.Table.from_arrays(columns, ["request_id", "sequence", "value", "error"]))


def _json_of(port: Port) -> str:
    """The SQL expression of an answer's value as JSON."""
    if not port.columns:
        return "'null'"
    # Spark converts only arrays, maps and structs to JSON: convert an array of the value, and remove its brackets.
    array = f"to_json(array({port.columns[0]}), map('ignoreNullFields', 'false'))"
    return f"substring({array}, 2, length({array}) - 2)"
