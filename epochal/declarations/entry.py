"""The declaration of an entry: the name by which the application is called, its arguments, the type of its answers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from epochal.contracts.source import Slice
from epochal.declarations.ddl import normal_type
from epochal.declarations.names import check_name, listed
from epochal.declarations.time_to_live import time_to_live
from epochal.errors import PipelineError, SchemaError
from epochal.state.expiry import Expiry
from epochal.state.table import TOUCHED, Column, StateKind, StateTable
from epochal.state.types import arrow_type

ENTRIES: Final = "entries"
"""The one source of the calls of all entries of an application, so that calls have one order."""
ANSWERS: Final = "answers"
"""The operator that stores the answers of all entries."""
REQUEST_ID: Final = Column(name="request_id", type="string")
SEQUENCE: Final = Column(name="sequence", type="bigint")
DAY: Final = "1 day"
"""The default retention of answers."""
ARGUMENTS: Final = "arguments"
CALL_SCHEMA: Final = pa.schema(
    [("entry", pa.string()), ("request_id", pa.string()), ("sequence", pa.int64()), (ARGUMENTS, pa.string())]
)
"""The columns of calls in an inbox; arguments are the JSON text of an object."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,54}")
_ARGUMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_TAKEN: Final = (REQUEST_ID.name, SEQUENCE.name)
_REFUSED: Final = ("variant", "interval")
"""Types (or prefixes of types) that calls cannot have: a variant has no schema, and JSON has no intervals."""


@dataclass(frozen=True)
class Entry:
    """``arguments``: in the declared order. Those that are ``optional`` can be omitted and are then null.

    ``returns``: the type of the values of answers; ``None``: a call is answered with null when its epoch is committed.
    """

    name: str
    arguments: tuple[Column, ...]
    optional: frozenset[str]
    returns: str | None
    description: str

    @property
    def rows(self) -> pa.Schema:
        """The columns of the stream of its calls."""
        return pa.schema([column.to_arrow() for column in (REQUEST_ID, SEQUENCE, *self.arguments)])

    @property
    def table(self) -> str:
        """The state table of its answers."""
        return f"{self.name}_answers"

    def details(self) -> dict[str, Any]:
        """The description, as JSON."""
        return {
            "name": self.name,
            "arguments": {column.name: column.type for column in self.arguments},
            "optional": sorted(self.optional),
            "returns": self.returns,
            "description": self.description,
        }


def calls_through(slice: Slice | None) -> int | None:
    """The number of the last call of a slice of :data:`ENTRIES`; ``None`` if there is no slice, or if it belongs to
    another kind of source with this name."""
    number = None if slice is None else slice.end.get("through")
    return number if isinstance(number, int) else None


def entry(
    name: str, arguments: Mapping[str, str], optional: Collection[str], returns: str | None, description: str
) -> Entry:
    """Raises ``PipelineError``, ``SchemaError`` with the fix."""
    check_name("an entry", name)
    if not _NAME.fullmatch(name):
        raise PipelineError(f"{name!r} cannot be the name of an entry: the maximum is 55 characters.")
    what = f"Entry {name!r}"
    if not isinstance(arguments, Mapping):
        raise PipelineError(f"{what}: arguments must map names to types, {{'key': 'string'}}, not {arguments!r}.")
    columns = tuple(_argument(what, each, type) for each, type in arguments.items())
    folded = [column.name.casefold() for column in columns]
    for column in columns:
        if column.name.casefold() in _TAKEN:
            raise PipelineError(f"{what}: {column.name!r} is a column of every call. Rename the argument.")
        if folded.count(column.name.casefold()) > 1:
            raise PipelineError(f"{what} has two arguments named {column.name!r} (names are case-insensitive).")
    unknown = [each for each in optional if each not in arguments]
    if isinstance(optional, str) or unknown:
        raise PipelineError(
            f"{what}: optional must be a list of arguments, of {listed(map(repr, arguments))}; not {optional!r}."
        )
    if not isinstance(description, str):
        raise PipelineError(f"{what}: the description must be a string, not {description!r}.")
    value = None if returns is None else _type(f"{what}: returns", returns)
    return Entry(name, columns, frozenset(optional), value, description)


def answers_table(entry: Entry, ttl: str, queryable: bool = True) -> StateTable:
    """The state table of answers: for each accepted call its number, and its answer if there is one.

    Raises ``PipelineError`` for an invalid time to live.
    """
    return StateTable(
        id=entry.table,
        operator=ANSWERS,
        kind=StateKind.VALUE,
        key=(REQUEST_ID,),
        value=(
            SEQUENCE,
            Column(name="answered", type="boolean"),
            Column(name="value", type="string"),
            Column(name="error", type="string"),
            TOUCHED,
        ),
        expires=kept_for(entry.name, ttl),
        queryable=queryable,
    )


def kept_for(entry: str, ttl: str) -> Expiry:
    """The retention of answers of an entry, in processing time. Raises ``PipelineError``."""
    what = f"answer({entry!r})"
    found = time_to_live(what, ttl)
    if found is None:
        raise PipelineError(f"{what}: answers require a time to live, such as ttl='1 day'.")
    return found


def _argument(what: str, name: object, type: object) -> Column:
    if not isinstance(name, str) or not _ARGUMENT.fullmatch(name):
        raise PipelineError(
            f"{what}: {name!r} is not a valid argument name: it must be a letter followed by letters, digits and '_', "
            "at most 63 characters."
        )
    return Column(name=name, type=_type(f"{what}, argument {name!r}", type))


def _type(what: str, type: object) -> str:
    if not isinstance(type, str):
        raise SchemaError(f"{what}: {type!r} is not a type: use Spark's name of a type, such as 'string' or 'bigint'.")
    try:
        found = normal_type(type)
        arrow_type(found)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error.message}") from None
    if any(refused in found for refused in _REFUSED):
        raise SchemaError(
            f"{what}: calls and answers cannot have the type {found}. Use a string, or a bigint of microseconds."
        )
    return found
