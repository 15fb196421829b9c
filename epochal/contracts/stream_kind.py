"""What the rows of a stream are to whoever reads it, and which kinds of stream a reader takes.

=================  ===================================================================================================
``append``         rows, each of which stands for itself and stays
``upsert(keys)``   new values of keys: a row takes the place of the earlier row with the same keys; an epoch has at
                   most one row of a key
``updates``        rows that changed. They replace earlier rows, but not all that changes is there, or nobody can tell
                   which row a row replaces: what they come to cannot be found from them
``changes``        rows as they were and as they are: :data:`CHANGE` is -1 and +1
=================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

CHANGE = "_change"
"""The column (int) of a stream of changes: -1 in a row that is no more, +1 in one that is now."""


class Kind(StrEnum):
    """The kinds of stream, without their keys."""

    APPEND = "append"
    UPSERT = "upsert"
    UPDATES = "updates"
    CHANGES = "changes"


@dataclass(frozen=True)
class StreamKind:
    """``keys``: an upsert's key columns, and none of any other kind. ``reason``: why it is updates, for people."""

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
    """Rows that changed. ``reason``: a clause that says why they are no more than that."""
    return StreamKind(Kind.UPDATES, reason=reason)


@dataclass(frozen=True)
class Accepted:
    """The kinds of stream that a reader takes. ``keys``: an upsert is taken by these alone; ``None``: by any.

    ``fix`` says what an author can do who has a stream of a kind that is not taken. It is serialised with the reader.
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
    """Whether these are names of the same columns, in any order; Spark's names do not differ by case alone."""
    return {name.casefold() for name in one} == {name.casefold() for name in other}


def without_changes(stream: StreamKind) -> str:
    """The fix of a reader that takes all kinds but ``changes``."""
    return "Leave changes=True out where the stream comes from, to have new values alone; only aggregates take changes."


EVERY_KIND = Accepted(frozenset(Kind), without_changes)
"""Of what shows rows as they are, ``_change`` among the columns."""
ALL_BUT_CHANGES = Accepted(frozenset({Kind.APPEND, Kind.UPSERT, Kind.UPDATES}), without_changes)
"""Of an author's own function, of what only shows rows, and of a sink that does not say what it takes."""


def only_append(fix: str) -> Accepted:
    """Of a reader to which every row stands for itself. ``fix``: what to do with new values of keys instead."""
    return Accepted(frozenset({Kind.APPEND}), partial(_instead, fix))


def _instead(fix: str, stream: StreamKind) -> str:
    return fix
