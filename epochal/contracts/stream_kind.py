"""Kinds of streams: what a stream's rows mean to its readers, and which kinds a reader accepts.

=================  ===================================================================================================
``append``         independent rows that are never replaced
``upsert(keys)``   new values of keys: a row replaces the earlier row with the same keys; an epoch has at most one
                   row of a key
``updates``        changed rows. They replace earlier rows, but some changes are missing, or the replaced row cannot be
                   identified: the current rows cannot be derived from them
``changes``        rows before and after each change: :data:`CHANGE` is -1 and +1
=================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

CHANGE = "_change"
"""The column (int) of a stream of changes: -1 in a removed row, +1 in an added row."""


class Kind(StrEnum):
    """The kinds of stream, without their keys."""

    APPEND = "append"
    UPSERT = "upsert"
    UPDATES = "updates"
    CHANGES = "changes"


@dataclass(frozen=True)
class StreamKind:
    """A kind with its keys. ``keys``: key columns of an upsert, empty for other kinds. ``reason``: why the stream is of
    kind ``updates``, for messages."""

    kind: Kind
    keys: tuple[str, ...] = ()
    reason: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (self.kind is Kind.UPSERT) != bool(self.keys):
            raise ValueError(f"A stream that is {self.kind.value} has the keys {self.keys!r}.")

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.keys)})" if self.keys else self.kind.value


APPEND = StreamKind(Kind.APPEND)
CHANGES = StreamKind(Kind.CHANGES)


def upsert(keys: Collection[str]) -> StreamKind:
    """New values of these key columns."""
    return StreamKind(Kind.UPSERT, tuple(keys))


def updates(reason: str) -> StreamKind:
    """The kind ``updates``. ``reason``: a clause for messages."""
    return StreamKind(Kind.UPDATES, reason=reason)


@dataclass(frozen=True)
class Accepted:
    """Kinds of streams that a reader accepts. ``keys``: required keys of an upsert; ``None``: any.

    ``fix`` returns what an author can do about a stream of another kind. It is serialised with the reader.
    """

    kinds: frozenset[Kind]
    fix: Callable[[StreamKind], str]
    keys: tuple[str, ...] | None = None

    def takes(self, stream: StreamKind) -> bool:
        if stream.kind not in self.kinds:
            return False
        return stream.kind is not Kind.UPSERT or self.keys is None or same_columns(self.keys, stream.keys)

    def __str__(self) -> str:
        """``append, upsert(origin)``."""
        keys = f"({', '.join(self.keys)})" if self.keys else ""
        return ", ".join(f"{kind.value}{keys if kind is Kind.UPSERT else ''}" for kind in Kind if kind in self.kinds)


def same_columns(one: Collection[str], other: Collection[str]) -> bool:
    """True if both name the same columns, in any order. Spark's column names are case-insensitive."""
    return {name.casefold() for name in one} == {name.casefold() for name in other}


def without_changes(stream: StreamKind) -> str:
    """Fix of a reader that accepts all kinds but ``changes``."""
    return "Remove changes=True from the operator that produces the stream; only aggregates accept changes."


EVERY_KIND = Accepted(frozenset(Kind), without_changes)
"""For readers that show rows as they are, including the column ``_change``."""
ALL_BUT_CHANGES = Accepted(frozenset({Kind.APPEND, Kind.UPSERT, Kind.UPDATES}), without_changes)
"""For author functions, readers that only show rows, and sinks that do not declare accepted kinds."""


def only_append(fix: str) -> Accepted:
    """For readers that need independent rows. ``fix``: what to do with a stream of another kind."""
    return Accepted(frozenset({Kind.APPEND}), partial(_instead, fix))


def _instead(fix: str, stream: StreamKind) -> str:
    return fix
