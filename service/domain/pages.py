"""Cursor pagination: a page goes on after the last item that was seen, whatever was added or removed meanwhile."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from epochal.errors import InvalidInput

DEFAULT_LIMIT = 50
LARGEST_LIMIT = 500

CursorValue = str | int | datetime
_LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class PageRequest:
    """At most ``limit`` items, after ``cursor``."""

    limit: int
    cursor: str | None

    def after(self, *kinds: type) -> tuple[Any, ...] | None:
        """The values in the cursor, ``None`` for the first page. ``InvalidInput`` unless they are of ``kinds``."""
        return None if self.cursor is None else _decode(self.cursor, kinds)


@dataclass(frozen=True)
class Part:
    """Rows, and the cursor to go on with; ``None`` at the end."""

    rows: Sequence[Any]
    next_cursor: str | None


def encode(*values: CursorValue) -> str:
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(json.dumps(plain).encode()).decode().rstrip("=")


def cut(rows: Sequence[Any], page: PageRequest, position: Callable[[Any], Sequence[CursorValue]]) -> Part:
    """Of up to ``limit + 1`` rows, a page of ``limit``; ``position`` gives a row's cursor values."""
    if len(rows) <= page.limit:
        return Part(rows, None)
    kept = rows[: page.limit]
    return Part(kept, encode(*position(kept[-1])))


def _decode(cursor: str, kinds: Sequence[type]) -> tuple[Any, ...]:
    try:
        values = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        if not isinstance(values, list) or len(values) != len(kinds):
            raise ValueError
        return tuple(_value(value, kind) for value, kind in zip(values, kinds, strict=True))
    except (ValueError, binascii.Error):
        raise InvalidInput("The cursor is not one of this list; leave it out to start from the beginning.") from None


def _value(value: Any, kind: type) -> Any:
    if kind is datetime and isinstance(value, str):
        moment = datetime.fromisoformat(value)
        valid = moment.tzinfo is not None
        value = moment
    elif kind is int:
        valid = type(value) is int and abs(value) <= _LARGEST_INTEGER
    else:
        valid = isinstance(value, str) and "\0" not in value
    if not valid:
        raise ValueError
    return value
