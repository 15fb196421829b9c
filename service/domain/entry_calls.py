"""Entries as a version declares them, validation of calls' arguments, and accepted calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from epochal.contracts.inbox import AcceptedCall
from epochal.errors import InvalidArguments, InvalidInput
from epochal.state.json_form import from_json, to_json
from epochal.state.table import Column
from epochal.state.type_names import nested_type
from epochal.state.types import FLOATING, INTEGER_BITS
from epochal.wire.calls import EntryDescription

_BOUNDS = {type: 2 ** (bits - 1) for type, bits in INTEGER_BITS.items()}


@dataclass(frozen=True)
class DeclaredEntry:
    """``table``: state table of its answers."""

    name: str
    arguments: tuple[Column, ...]
    optional: frozenset[str]
    returns: str | None
    description: str
    table: str

    def checked(self, arguments: Mapping[str, Any], call: str, most_bytes: int) -> str:
        """The arguments as the JSON text of an object, in canonical form. ``call``: the call's designation in messages.
        Raises ``InvalidArguments``, naming the argument."""
        where = f"{call}entry {self.name!r}"
        found = {}
        for column in self.arguments:
            value = arguments.get(column.name)
            if value is None:
                if column.name not in self.optional:
                    gone = "is null" if column.name in arguments else "is missing"
                    raise InvalidArguments(f"{where}: argument {column.name!r} ({column.type}) {gone}.")
                continue
            if _is_plain(value, column.type):
                found[column.name] = value
                continue
            try:
                parsed = from_json(value, column)
            except InvalidInput as error:
                raise InvalidArguments(f"{where}: {error.message}") from None
            found[column.name] = to_json(_pairs(parsed, column), column.type)
        unknown = sorted(arguments.keys() - {column.name for column in self.arguments})
        if unknown:
            names = ", ".join(column.name for column in self.arguments) or "no arguments"
            raise InvalidArguments(f"{where}: there is no argument {unknown[0]!r}; it takes {names}.")
        text = orjson.dumps(found)
        if len(text) > most_bytes:
            raise InvalidArguments(
                f"{where}: the arguments are {len(text)} bytes of JSON; the maximum is {most_bytes}."
            )
        return text.decode()

    def checked_plain(self, arguments: Sequence[Any], most_bytes: int) -> list[str] | None:
        """Like :meth:`checked`, for many calls, column by column. ``None`` if one of them is invalid or has structured
        arguments; the calls are then checked one by one, which gives the reason."""
        if set(map(type, arguments)) != {dict}:
            return None
        columns = [[each.get(column.name) for each in arguments] for column in self.arguments]
        if not all(_are_plain(values, column.type) for values, column in zip(columns, self.arguments, strict=True)):
            return None
        names = [column.name for column in self.arguments]
        if set(map(len, arguments)) != {len(names)}:
            return None  # all columns are present and not null, so the extra one is unknown
        rows = zip(*columns, strict=True) if columns else [()] * len(arguments)
        texts = [orjson.dumps(dict(zip(names, row, strict=True))) for row in rows]
        return [text.decode() for text in texts] if max(map(len, texts)) <= most_bytes else None

    @property
    def answer(self) -> EntryDescription:
        return EntryDescription(
            name=self.name,
            description=self.description,
            arguments={
                "type": "object",
                "properties": {column.name: schema_of(column.type) for column in self.arguments},
                "required": [column.name for column in self.arguments if column.name not in self.optional],
                "additionalProperties": False,
            },
            returns=self.returns,
            table=self.table,
        )


@dataclass(frozen=True)
class AcceptedCalls:
    """Calls of one entry, by request id, in the order of the request. ``application``: its name."""

    application: str
    entry: DeclaredEntry
    calls: Mapping[str, AcceptedCall]


def declared_entries(graph: Mapping[str, Any] | None) -> dict[str, DeclaredEntry]:
    """Entries by name, from the description of a version's graph."""
    for node in (graph or {}).get("nodes", ()):
        if node["type"] == "source" and node["description"].get("kind") == "entries":
            found = [_declared(each) for each in node["description"]["entries"]]
            return {entry.name: entry for entry in found}
    return {}


def schema_of(type: str) -> dict[str, Any]:
    """The JSON Schema of a type's JSON form."""
    if type in INTEGER_BITS:
        bound = 2 ** (INTEGER_BITS[type] - 1)
        return {"type": "integer", "minimum": -bound, "maximum": bound - 1}
    if type in FLOATING:
        return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    known: dict[str, dict[str, Any]] = {
        "boolean": {"type": "boolean"},
        "binary": {"type": "string", "contentEncoding": "base64"},
        "date": {"type": "string", "format": "date"},
        "timestamp": {"type": "string", "format": "date-time"},
    }
    nested = nested_type(type)
    if nested is None:
        return known.get(type, {"type": "string"})
    inner = [schema_of(each) for each in nested.types]
    match nested.kind:
        case "array":
            return {"type": "array", "items": inner[0]}
        case "map":
            return {"type": "object", "additionalProperties": inner[1]}
        case _:
            names = list(nested.names)
            return {"type": "object", "properties": dict(zip(names, inner, strict=True)), "required": names}


def _is_plain(value: Any, type_name: str) -> bool:
    """Return whether the value has only one JSON form. Checked fast, since most values do and there are thousands in a
    second."""
    if type_name == "string":
        return type(value) is str and value.isascii()
    bound = _BOUNDS.get(type_name)
    return type(value) is int and -bound <= value < bound if bound is not None else False


def _are_plain(values: Sequence[Any], type_name: str) -> bool:
    """Like :func:`_is_plain`, for many values."""
    if type_name == "string":
        return set(map(type, values)) == {str} and "".join(values).isascii()
    bound = _BOUNDS.get(type_name)
    return bound is not None and set(map(type, values)) == {int} and -bound <= min(values) and max(values) < bound


def _declared(entry: Mapping[str, Any]) -> DeclaredEntry:
    return DeclaredEntry(
        name=entry["name"],
        arguments=tuple(Column(name=name, type=type) for name, type in entry["arguments"].items()),
        optional=frozenset(entry["optional"]),
        returns=entry["returns"],
        description=entry["description"],
        table=entry["table"],
    )


def _pairs(value: Any, column: Column) -> Any:
    """Maps as pairs, as Arrow returns them and :func:`to_json` expects them."""
    import pyarrow as pa

    return pa.scalar(value, column.to_arrow().type).as_py()
