"""Keys of rows: chunks of rows that never split a key, and named tuples of keys, rows and values for authors' code."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.contracts.state import KeyGroups
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column
from epochal.tasks.values import column_of, garbage_collection_paused, python_values, run_starts

Maker = Callable[[Iterable[Any]], Any]
CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class KeyChunk:
    """Distinct keys of one subtask: ``table`` has the operator's key columns, ``groups`` their key groups."""

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
        """The prefix of the full keys of each key's list or map entries."""
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
    """A constructor of named tuples from iterables. A name that is not a Python identifier becomes ``_`` and its
    position."""
    # Bypasses namedtuple's own constructors, which take half as much time again; callers pass tuples from `zip`.
    return partial(tuple.__new__, row_type(kind, names))


@cache
def row_type(kind: str, names: tuple[str, ...]) -> Any:
    return namedtuple(kind, names, rename=True)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Contiguous ``rows``; key i has the rows from ``starts[i]`` up to ``starts[i + 1]`` or the end."""

    rows: pa.Table
    starts: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def ends(self) -> list[int]:
        return [*self.starts[1:].tolist(), self.rows.num_rows]


def whole_keys(batches: Iterator[pa.RecordBatch], key: Sequence[str], target_rows: int) -> Iterator[Chunk]:
    """Chunks of about ``target_rows`` rows; larger only where a single key has more rows than that."""
    pending: list[pa.RecordBatch] = []
    rows, enough = 0, target_rows
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows < enough:
            continue
        table = pa.Table.from_batches(pending).combine_chunks()
        starts = run_starts(table, key)
        last = int(starts[-1])
        if last > 0:
            yield Chunk(table.slice(0, last), starts[:-1])
        # The last key may continue in the next batch. Doubling limits the copies of a key with very many rows.
        pending = table.slice(last).to_batches()
        rows = table.num_rows - last
        enough = target_rows if last > 0 else 2 * rows
    if rows:
        table = pa.Table.from_batches(pending).combine_chunks()
        yield Chunk(table, run_starts(table, key))


def named(name: str | None, columns: Iterable[str]) -> str | None:
    """The column that Spark resolves ``name`` to, in its own spelling; ``None`` if no column matches."""
    return None if name is None else next((each for each in columns if each.casefold() == name.casefold()), None)


def spelled(columns: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns that Spark resolves ``names`` to, in their own spelling."""
    own = {name.casefold(): name for name in columns}
    return tuple(own[name.casefold()] for name in names if name.casefold() in own)
