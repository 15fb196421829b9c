"""Cursor pagination: a page continues after the last item seen, regardless of items added or removed."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from epochal.errors import InvalidCursor

DEFAULT_LIMIT = 50
LARGEST_LIMIT = 500

CursorValue = str | int | datetime
_LARGEST_INTEGER = 2**63 - 1
_SIGNATURE_BYTES = 16
_REFUSED = (
    "The cursor does not belong to this list, or it was changed. Repeat the request without `cursor` to start from the "
    "first page."
)


@dataclass(frozen=True)
class CursorSeal:
    """Signs the cursors of one list, and opens the cursors that it has signed.

    ``key``: the secret of the installation. ``listing``: the names that identify the list (project, path, filters), so
    that the cursor of one list is refused by every other list.
    """

    key: bytes = field(repr=False)
    listing: tuple[str, ...]

    def sign(self, content: bytes) -> str:
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def open(self, cursor: str) -> bytes:
        """The signed content. Raises ``InvalidCursor``."""
        try:
            data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except ValueError:  # also of a character that is not ASCII
            raise InvalidCursor(_REFUSED) from None
        signature, content = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        # The last character may have bits that decoding ignores: only the text that was issued is accepted.
        if not hmac.compare_digest(signature, self._signature(content)) or self.sign(content) != cursor:
            raise InvalidCursor(_REFUSED)
        return content

    def _signature(self, content: bytes) -> bytes:
        listing = json.dumps(self.listing).encode()  # without a line break, so the two parts cannot be confused
        return hmac.digest(self.key, listing + b"\n" + content, "sha256")[:_SIGNATURE_BYTES]


@dataclass(frozen=True)
class PageRequest:
    """At most ``limit`` items after ``position``, the content of an opened cursor."""

    limit: int
    position: bytes | None
    seal: CursorSeal

    @classmethod
    def of(cls, limit: int, cursor: str | None, seal: CursorSeal) -> PageRequest:
        """Raises ``InvalidCursor`` unless ``seal`` has signed the cursor."""
        return cls(limit, None if cursor is None else seal.open(cursor), seal)

    def after(self, *kinds: type) -> tuple[Any, ...] | None:
        """The values in the cursor, ``None`` for the first page. Raises ``InvalidCursor`` unless they have the types
        ``kinds``."""
        return None if self.position is None else _decode(self.position, kinds)

    def following(self, *values: CursorValue) -> str:
        """The cursor of the page after the item with these values."""
        plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
        return self.seal.sign(json.dumps(plain).encode())


@dataclass(frozen=True)
class Part:
    """Rows, and the cursor of the next page; ``None`` at the end."""

    rows: Sequence[Any]
    next_cursor: str | None


def cut(rows: Sequence[Any], page: PageRequest, position: Callable[[Any], Sequence[CursorValue]]) -> Part:
    """A page of ``limit`` from up to ``limit + 1`` rows; ``position`` returns the cursor values of a row."""
    if len(rows) <= page.limit:
        return Part(rows, None)
    kept = rows[: page.limit]
    return Part(kept, page.following(*position(kept[-1])))


def encoded_key(key: bytes) -> str:
    """A key of state as a value of a cursor."""
    return base64.b64encode(key).decode()


def decoded_key(text: str) -> bytes:
    """Raises ``InvalidCursor``."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidCursor(_REFUSED) from None


def check_cursor(belongs: bool) -> None:
    """Raises ``InvalidCursor`` unless what the cursor names belongs to the list."""
    if not belongs:
        raise InvalidCursor(_REFUSED)


def _decode(content: bytes, kinds: Sequence[type]) -> tuple[Any, ...]:
    try:
        values = json.loads(content)
        if not isinstance(values, list) or len(values) != len(kinds):
            raise ValueError
        return tuple(_value(value, kind) for value, kind in zip(values, kinds, strict=True))
    except ValueError:
        raise InvalidCursor(_REFUSED) from None


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
