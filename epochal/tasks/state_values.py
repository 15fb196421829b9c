"""Values and sub-keys that an author's code writes, in the form in which state accesses hold them.

A state with one declared column holds the plain value, a state with several columns a named tuple. Arity and names are
checked at the call, so that the author's traceback shows the line. Types are checked when a chunk's changes are
converted to Arrow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from epochal.errors import EpochalError, SchemaError
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column, StateTable
from epochal.tasks.keys import maker, row_type
from epochal.tasks.values import Unconvertible, arrow_values


class Fields:
    """The value columns of one state table, in the author's view."""

    def __init__(self, state: str, columns: Sequence[Column]) -> None:
        self._state = state
        self._declared = declared(columns)
        self.names = tuple(column.name for column in columns)
        self.single = len(self.names) == 1
        self.nested = any(pa.types.is_nested(column.to_arrow().type) for column in columns)
        """True if values contain lists or dicts, which the author's code may change after it has read or written
        them."""
        self.row = row_type("Value", self.names)
        self._make = maker("Value", self.names)

    def value(self, values: tuple[Any, ...], columns: dict[str, Any]) -> Any:
        """The value that the arguments of ``set`` or ``append`` describe."""
        return self.copied(self._value(values, columns))

    def copied(self, value: Any) -> Any:
        """A copy that shares no list or dict with ``value``, so that only the author's calls change the state."""
        return _copied(value) if self.nested else value

    def _value(self, values: tuple[Any, ...], columns: dict[str, Any]) -> Any:
        if columns:
            if values or columns.keys() != set(self.names):
                raise self._refusal(values, columns)
            ordered = [columns[name] for name in self.names]
            return ordered[0] if self.single else self.row(*ordered)
        if self.single:
            if len(values) != 1:
                raise self._refusal(values, columns)
            return values[0]
        if len(values) == 1 and isinstance(values[0], (tuple, list)):
            values = tuple(values[0])
        if len(values) != len(self.names):
            raise self._refusal(values, columns)
        return self._make(values)

    def one(self, value: Any) -> Any:
        """The value that a single object describes: an element of ``extend``, the value of ``put``."""
        return self.copied(value) if self.single else self.value((value,), {})

    def columns(self, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """One sequence per column; ``None`` is null in all columns."""
        if self.single:
            return [values]
        empty = (None,) * len(self.names)
        return list(zip(*(empty if value is None else value for value in values), strict=True)) or [()] * len(
            self.names
        )

    def _refusal(self, values: tuple[Any, ...], columns: dict[str, Any]) -> SchemaError:
        shown = ", ".join([*map(repr, values), *(f"{name}={value!r}" for name, value in columns.items())])
        return SchemaError(
            f"State {self._state!r} was given ({shown}), but is declared as ({self._declared}): "
            "give all of its columns, in this order or by name."
        )


class SubKeys:
    """Converts the own keys of a map to the bytes that identify an entry below its key, and back."""

    def __init__(self, state: str, columns: Sequence[Column]) -> None:
        self._state = state
        self._declared = declared(columns)
        fields = pa.schema([column.to_arrow(nullable=False) for column in columns])
        self.codec = KeyCodec(fields)
        self.single = len(columns) == 1
        self._exact = [_exact(type) for type in fields.types]

    def encode(self, key: Any) -> bytes:
        """Raises ``SchemaError`` naming the state."""
        values = (key,) if self.single else key
        try:
            return self.codec.encode_one([exact(value) for exact, value in zip(self._exact, values, strict=True)])
        except (TypeError, ValueError, AttributeError, OverflowError, ArithmeticError, EpochalError) as error:
            raise SchemaError(
                f"State {self._state!r}: {key!r} cannot be a key of this map, whose key is ({self._declared}): {error}."
            ) from None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_copied, value))
    if isinstance(value, tuple):
        copies = map(_copied, value)
        return type(value)(*copies) if hasattr(value, "_fields") else tuple(copies)
    return value


def declared(columns: Sequence[Column]) -> str:
    """``streak int, since timestamp``."""
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def _exact(type: pa.DataType) -> Callable[[Any], Any]:
    """A conversion that rejects values that the codec would change silently, such as 1.7 to 1."""
    if pa.types.is_integer(type):
        return operator.index
    if pa.types.is_timestamp(type) and type.tz is not None:
        return _in_utc
    kinds = {pa.string(): str, pa.binary(): bytes, pa.bool_(): bool}
    return _instance(kinds[type]) if type in kinds else lambda value: value


def _in_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _instance(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"expected {kind.__name__}, not {type(value).__name__}")
        return value

    return check


def value_column(table: StateTable, field: pa.Field, values: Sequence[Any], at: Callable[[int], str]) -> pa.Array:
    """The Arrow form of an author's values for one column. ``at``: the place of a row, for messages.

    Raises ``SchemaError`` for a value that does not fit.
    """
    try:
        return arrow_values(values, field.type)
    except Unconvertible as wrong:
        raise SchemaError(
            f"Operator {table.operator!r}: state {table.id!r} was given {wrong.shown} ({wrong.found}) for column "
            f"{field.name!r}{at(wrong.position)}: {wrong}. It is declared as ({declared(table.visible)}): convert the "
            "value first."
        ) from None
