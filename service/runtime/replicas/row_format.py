"""Conversion of the keys and values of one state table between JSON and the bytes in a replica.

The conversion is compiled once per table, because look-ups are frequent. Point look-ups convert one key at a time;
batches are converted column by column through Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from operator import itemgetter
from types import NoneType
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import InvalidKey
from epochal.state.column_bytes import data_and_offsets
from epochal.state.json_form import key_from_json, key_from_path, to_json
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import Column, StateTable
from epochal.state.types import FLOATING, INTEGER_BITS, arrow_type
from epochal.wire.state import FOUND

_AS_JSON = frozenset({*INTEGER_BITS, "boolean", "string"})
"""Types whose Python values equal their JSON form."""


class RowFormat:
    """Converter for one state table. Errors are ``InvalidKey`` and name the column."""

    def __init__(self, table: StateTable) -> None:
        self.table = table
        self._keys = KeyCodec(table.address_schema)
        self._implied = table.implied
        self._values = RowCodec(table.value_schema)
        self._key_names = [column.name for column in table.address]
        self._value_names = [column.name for column in table.visible]
        self._converted = [(column.name, column.type) for column in table.visible if column.type not in _AS_JSON]
        self._not_as_they_are = bool(table.shown or table.hidden)
        integers = not self._not_as_they_are and all(column.type in INTEGER_BITS for column in table.visible)
        self._json_of_integers = _json_form(self._value_names) if integers and table.visible else None
        self._plain_text = all(column.type == "string" for column in table.address)
        self._takes_fast_keys = all(column.type in _AS_JSON for column in table.address)

    def path_key(self, path: str) -> tuple[Any, ...]:
        """Parse the percent-encoded key in a URL path.

        The path holds the full address, or only the operator's key where a key has several rows. For broadcast state,
        the sub-key alone is sufficient.
        """
        if self._plain_text and "%" not in path:
            parts = path.split(",")
            if len(parts) == len(self._key_names):
                return tuple(parts)
        columns = self.table.address
        if self._implied and path.count(",") + 1 == len(self.table.sub_key):
            return (*self._implied.values(), *key_from_path(path, self.table.sub_key))
        if self.table.entry_key and path.count(",") + 1 == len(self.table.key):
            columns = self.table.key
        return key_from_path(path, columns)

    def is_whole(self, key: Sequence[Any]) -> bool:
        """Return ``True`` if the key addresses one row, ``False`` if it is a prefix that addresses several rows."""
        return len(key) == len(self._key_names)

    def encode_key(self, key: Sequence[Any]) -> bytes:
        """Encode a key. The encoding of a leading part of a key is a prefix of the encoding of every key that begins
        with
        that part."""
        return self._keys.encode_one(key)

    def key_json(self, key: Sequence[Any]) -> bytes:
        if self._plain_text:
            return orjson.dumps(dict(zip(self._key_names, key, strict=False)))
        return orjson.dumps(_json_object(zip(self.table.address, key, strict=False)))

    def value_json(self, row: bytes) -> bytes:
        """Convert an encoded value to a JSON object."""
        if self._json_of_integers is not None:
            numbers = self._values.numbers_of(row)
            if numbers is not None:
                return self._json_of_integers % numbers
        return orjson.dumps(self.value_object(row))

    def value_object(self, row: bytes) -> dict[str, Any]:
        values = self._values.decode_one(row)
        if not self._not_as_they_are:
            for name, type in self._converted:
                value = values[name]
                if type not in FLOATING or (value is not None and not isfinite(value)):
                    values[name] = to_json(value, type)
            return values
        shown = {column.name: to_json(value, column.type) for column, value in self.table.shown_of(values)}
        for name, type in self._converted:
            values[name] = to_json(values[name], type)
        for name in self.table.hidden:
            del values[name]
        return values | shown

    def entries_json(self, rows: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Convert the rows of one operator key to a JSON array of objects with the columns of the time, the sub-key
        and the
        value."""
        entry_key = self.table.entry_key
        keys = self._keys.decode([key for key, _ in rows]).select([column.name for column in entry_key])
        objects = [
            _json_object((column, key[column.name]) for column in entry_key) | self.value_object(value)
            for key, (_, value) in zip(keys.to_pylist(), rows, strict=True)
        ]
        return orjson.dumps(objects)

    def row_objects(self, rows: Sequence[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
        """Convert rows to objects ``{key, value}`` with all key columns."""
        keys = self._keys.decode([key for key, _ in rows]).to_pylist()
        return [
            {
                "key": _json_object((column, key[column.name]) for column in self.table.address),
                "value": self.value_object(value),
            }
            for key, (_, value) in zip(keys, rows, strict=True)
        ]

    def key_prefix(self, text: str) -> tuple[bytes, int]:
        """Return the encoded prefix of the keys with these leading columns, and the number of complete columns.

        ``text`` has the form of a key in a path, with fewer columns. A trailing ``*`` (a literal star is ``%2A``)
        matches any remainder of the last column, which must be text.
        """
        if not text:
            return b"", 0
        implied = tuple(self._implied.values())
        leading = self.table.address[len(implied) :][: text.count(",") + 1]
        if not text.endswith("*"):
            return self._keys.encode_one((*implied, *key_from_path(text, leading))), len(implied) + len(leading)
        if leading[-1].type != "string":
            raise InvalidKey(
                f"Column {leading[-1].name!r} is {leading[-1].type}: only of text can a beginning be given."
            )
        key = key_from_path(text[:-1], leading)
        if key[-1] is None:
            raise InvalidKey(f"Column {leading[-1].name!r}: null (%00) has no beginning; leave the * out.")
        return self._keys.encode_one((*implied, *key))[:-1], len(implied) + len(leading) - 1

    def owner_of(self, encoded: bytes) -> bytes | None:
        """Return the operator's key within an encoded key; ``None`` if the encoded key does not contain all of it."""
        return self._keys.leading(encoded, len(self.table.key))

    def encode_keys(self, keys: Sequence[dict[str, Any]]) -> list[bytes]:
        """Encode a batch of keys, each an object by column name."""
        if self._implied:
            keys = [self._implied | _object(key) for key in keys]
        if self._takes_fast_keys and keys:
            table = self._key_columns(keys)
            if table is not None:
                return self._keys.encode(table)
        return [self._keys.encode_one(key_from_json(_object(key), self.table.address)) for key in keys]

    def encoded(self, keys: pa.Table) -> list[bytes]:
        """Encode a batch of keys, given as columns with the types of the address."""
        return self._keys.encode(keys)

    def decoded(self, rows: Sequence[bytes]) -> pa.Table:
        """Decode a batch of values to columns."""
        return self._values.decode(rows)

    def shown_rows(self, rows: Sequence[bytes | None]) -> pa.Table:
        """Decode a batch of values to user-visible columns of their own types, preceded by the column ``FOUND``.

        For a missing row, ``FOUND`` is false and all other columns are null.
        """
        found = np.array([row is not None for row in rows], bool)
        columns = [(pa.field(FOUND, pa.bool_(), nullable=False), pa.array(found))]
        shown = self._shown_columns([row for row in rows if row is not None])
        if not found.all():
            places = pa.array(np.cumsum(found) - 1, mask=~found)
            shown = [(field, values.take(places)) for field, values in shown]
        return _table([*columns, *shown])

    def row_columns(self, rows: Sequence[tuple[bytes, bytes]]) -> pa.Table:
        """Convert rows like :meth:`row_objects`, but to columns of their own types: key columns, then value columns."""
        keys = self._keys.decode([key for key, _ in rows])
        addressed = list(zip(keys.schema, keys.columns, strict=True))
        return _table([*addressed, *self._shown_columns([value for _, value in rows])])

    def _shown_columns(self, rows: Sequence[bytes]) -> list[tuple[pa.Field, pa.ChunkedArray]]:
        decoded = self._values.decode(rows)
        columns = []
        for column in (*self.table.visible, *self.table.shown):
            field = pa.field(column.name, arrow_type(column.type))
            values = decoded[column.name] if isinstance(column, Column) else column.over(decoded).cast(field.type)
            columns.append((field, values))
        return columns

    def values_json(self, rows: Sequence[bytes | None]) -> bytes:
        """Convert a batch of values to a JSON array of objects, with ``null`` for a missing row."""
        present = [row for row in rows if row is not None]
        if not present:
            return orjson.dumps([None] * len(rows))
        decoded = self._values.decode(present)
        columns = [(column.name, column.type, decoded.column(column.name)) for column in self.table.visible]
        columns += [(shown.name, shown.type, shown.over(decoded)) for shown in self.table.shown]
        plain = plain_objects([(name, values) for name, _, values in columns])
        if plain is not None:
            return array_of(plain, [row is not None for row in rows])
        names = [name for name, _, _ in columns]
        lists = [_json_column(values, type) for _, type, values in columns]
        objects = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
        if len(present) == len(rows):
            return orjson.dumps(objects)
        remaining = iter(objects)
        return orjson.dumps([None if row is None else next(remaining) for row in rows])

    def _key_columns(self, keys: Sequence[dict[str, Any]]) -> pa.Table | None:
        """Return the keys as columns; ``None`` if a key is invalid. The slow path then reports which key, and why."""
        width = len(self._key_names)
        arrays = []
        try:
            if set(map(len, keys)) != {width}:
                return None
            for column, field in zip(self.table.address, self.table.address_schema, strict=True):
                values = list(map(itemgetter(column.name), keys))
                if not set(map(type, values)) <= {_python_type(column.type), NoneType}:
                    return None
                arrays.append(pa.array(values, field.type))
        except (KeyError, TypeError, pa.ArrowException, OverflowError, UnicodeError):
            return None
        return pa.table(arrays, schema=self.table.address_schema)


def _python_type(type: str) -> Callable[..., Any]:
    return str if type == "string" else bool if type == "boolean" else int


def _json_form(names: Sequence[str]) -> bytes:
    """Format string of a JSON object of integers, with ``%d`` for each value."""
    return b"{" + b",".join(orjson.dumps(name).replace(b"%", b"%%") + b":%d" for name in names) + b"}"


def _object(key: Any) -> dict[str, Any]:
    if not isinstance(key, dict):
        raise InvalidKey(f"A key must be an object with values by column name, not {key!r}.")
    return key


def _json_object(pairs: Iterable[tuple[Column, Any]]) -> dict[str, Any]:
    return {column.name: to_json(value, column.type) for column, value in pairs}


def _table(columns: Sequence[tuple[pa.Field, Any]]) -> pa.Table:
    return pa.table([values for _, values in columns], schema=pa.schema([field for field, _ in columns]))


def _json_column(column: pa.ChunkedArray, type: str) -> list[Any]:
    if not column.null_count and (type in INTEGER_BITS or type in FLOATING):
        numbers = column.to_numpy()
        if type in INTEGER_BITS or np.isfinite(numbers).all():
            plain: list[Any] = numbers.tolist()
            return plain
    values: list[Any] = column.to_pylist()
    return values if type in _AS_JSON else [to_json(value, type) for value in values]


_NULL = "null"
_PRINTABLE = np.zeros(256, bool)
"""ASCII bytes that need no escape in JSON."""
_PRINTABLE[0x20:0x7F] = True
_PRINTABLE[[ord('"'), ord("\\")]] = False


def plain_objects(columns: Sequence[tuple[str, pa.ChunkedArray | pa.Array]]) -> pa.StringArray | None:
    """Format each row as a JSON object followed by a comma.

    Returns ``None`` if a column is not of numbers, booleans or text, or holds a value that requires escaping or another
    representation.
    """
    parts: list[pa.Array | pa.Scalar] = []
    for name, values in columns:
        texts = _texts(pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values)
        if texts is None:
            return None
        parts += [pa.scalar(("," if parts else "{") + orjson.dumps(name).decode() + ":"), texts]
    return pc.binary_join_element_wise(*parts, pa.scalar("},"), pa.scalar("")) if parts else None


def array_of(objects: pa.StringArray, there: Sequence[bool]) -> bytes:
    """Join the objects to a JSON array, with ``null`` for each missing one. At least one object must exist."""
    if not all(there):
        found = np.array(there, bool)
        objects = objects.take(pa.array(np.cumsum(found) - 1, mask=~found)).fill_null(f"{_NULL},")
    data, offsets = data_and_offsets(objects)
    return b"".join((b"[", data[offsets[0] : offsets[-1] - 1].data, b"]"))


def _texts(values: pa.Array) -> pa.StringArray | None:
    type = values.type
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return values.cast(pa.string()).fill_null(_NULL)
    if pa.types.is_floating(type):
        numbers = None if values.null_count else values.to_numpy(zero_copy_only=False)
        if numbers is None or not np.isfinite(numbers).all():
            return None
        return pa.array(orjson.dumps(numbers.tolist()).decode()[1:-1].split(","), pa.string())
    if pa.types.is_string(type):
        data, offsets = data_and_offsets(values)
        if not _PRINTABLE[data[offsets[0] : offsets[-1]]].all():
            return None
        return pc.binary_join_element_wise(pa.scalar('"'), values, pa.scalar('"'), pa.scalar("")).fill_null(_NULL)
    return None
