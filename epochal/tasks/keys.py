"""The keys of a chunk of rows, and the named tuples that authors get keys, rows and values as."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import pyarrow as pa

from epochal.contracts.state import KeyGroups
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column
from epochal.tasks.values import column_of, garbage_collection_paused, python_values

Maker = Callable[[Iterable[Any]], Any]


@dataclass(frozen=True, eq=False)
class KeyChunk:
    """Some keys of one subtask, none twice: ``table`` has the operator's key columns, ``groups`` their key groups."""

    columns: tuple[Column, ...]
    table: pa.Table
    groups: KeyGroups

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def names(self) -> list[Any]:
        """Each key as a named tuple."""
        return named_rows("Key", self.table, [column.name for column in self.columns])

    @cached_property
    def prefixes(self) -> list[bytes]:
        """What the full keys of each key's list or map entries begin with."""
        return KeyCodec(pa.schema([column.to_arrow() for column in self.columns])).encode(self.table)

    def shown(self, position: int) -> str:
        """One key for a message: ``(origin='JFK', destination='LAX')``."""
        values = (column_of(self.table, column.name)[position].as_py() for column in self.columns)
        return key_text(self.columns, values)


def key_text(columns: Sequence[Column], values: Iterable[Any]) -> str:
    """``(origin='JFK', destination='LAX')``."""
    return _text((column.name for column in columns), values)


def key_shown(rows: pa.Table, position: int) -> str:
    """The values of one row as :func:`key_text`."""
    return _text(rows.column_names, (column[position].as_py() for column in rows.columns))


def _text(names: Iterable[str], values: Iterable[Any]) -> str:
    return f"({', '.join(f'{name}={value!r}' for name, value in zip(names, values, strict=True))})"


def named_rows(kind: str, rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[Any]:
    """Each row as a named tuple of the columns ``names``."""
    make = maker(kind, tuple(names))
    with garbage_collection_paused():
        return list(map(make, zip(*(python_values(column_of(rows, name)) for name in names), strict=True)))


@cache
def maker(kind: str, names: tuple[str, ...]) -> Maker:
    """From an iterable of values to a named tuple. A name that Python cannot spell becomes ``_`` and its position."""
    # Past namedtuple's own constructors, which cost half as much again: its users come through `zip`.
    return partial(tuple.__new__, row_type(kind, names))


@cache
def row_type(kind: str, names: tuple[str, ...]) -> Any:
    return namedtuple(kind, names, rename=True)
