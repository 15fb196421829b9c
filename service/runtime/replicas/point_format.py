"""Fast path for the most frequent form of keys. The properties of the table are computed once."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.state.types import INTEGER_BITS

_TEXT: Final = "string"
_PLAIN_TEXT: Final = rb"([A-Za-z0-9_.~:@-]+)"
"""Text that needs no escape, neither in a path nor in JSON."""
_PLAIN_INTEGER: Final = rb"(0|-?[1-9][0-9]{0,18})"


class PointFormat:
    """Parser for complete keys of text and integers without escapes.

    :class:`RowFormat` returns the same results for these keys, and also handles all others.
    """

    def __init__(self, format: RowFormat) -> None:
        columns = format.table.address
        types = [column.type for column in columns]
        plain = bool(columns) and not format.table.implied and set(types) <= {_TEXT, *INTEGER_BITS}
        pattern = b",".join(_PLAIN_TEXT if type == _TEXT else _PLAIN_INTEGER for type in types)
        self._match = re.compile(pattern).fullmatch if plain else None
        self._encode = format.encode_key
        self._convert: list[Any] = [bytes.decode if type == _TEXT else int for type in types]
        self._bounds = [1 << (INTEGER_BITS[type] - 1) if type in INTEGER_BITS else 0 for type in types]
        self._bound_of_one = self._bounds[0] if plain and len(types) == 1 else 0
        members = [
            orjson.dumps(column.name).replace(b"%", b"%%") + (b':"%b"' if column.type == _TEXT else b":%b")
            for column in columns
        ]
        self._json = b"{" + b",".join(members) + b"}"

    def key(self, path: bytes) -> tuple[bytes, bytes] | None:
        """Convert a key from a path to its encoding in replicas and to JSON; ``None`` if the key needs the general
        path."""
        match = None if self._match is None else self._match(path)
        if match is None:
            return None
        if bound := self._bound_of_one:
            number = int(path)
            return (self._encode((number,)), self._json % path) if -bound <= number < bound else None
        texts = match.groups()
        values = []
        for text, convert, bound in zip(texts, self._convert, self._bounds, strict=True):
            value = convert(text)
            if bound and not -bound <= value < bound:
                return None
            values.append(value)
        return self._encode(values), self._json % texts
