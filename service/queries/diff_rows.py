"""Rows of a difference as JSON objects."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa

from epochal.service.queries.state.rows import key_object, value_object
from epochal.snapshots.difference import TableDifference
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from epochal.wire.history import DiffRow

Row = dict[str, Any]


def rows_of(found: TableDifference, first: int, end: int) -> list[DiffRow]:
    """Those from place ``first`` up to ``end``, in key order."""
    table = found.after or found.before
    assert table is not None  # one of the two snapshots has declared it
    keys = KeyCodec(table.address_schema).decode(found.keys[first:end]).to_pylist()
    old = _values(found.before, found.old.slice(first, end - first), found.had[first:end].tolist())
    new = _values(found.after, found.new.slice(first, end - first), found.has[first:end].tolist())
    expired = found.expired[first:end].tolist()
    return [
        DiffRow(kind="expired" if is_gone else _kind(was, now), key=key_object(table, key), old=was, new=now)
        for key, was, now, is_gone in zip(keys, old, new, expired, strict=True)
    ]


def _values(table: StateTable | None, rows: pa.Table, there: list[bool]) -> list[Row | None]:
    if table is None:
        return [None] * rows.num_rows
    return [
        value_object(table, row) if is_there else None for row, is_there in zip(rows.to_pylist(), there, strict=True)
    ]


def _kind(old: Row | None, new: Row | None) -> Literal["added", "changed", "deleted"]:
    return "added" if old is None else "deleted" if new is None else "changed"
