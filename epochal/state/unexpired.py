"""Views that hide expired rows. Tables whose rows never expire need no such view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import END
from epochal.contracts.state import Found, KeyGroups, StateRows, StateView
from epochal.state.column_bytes import Mask
from epochal.state.expiry import gone
from epochal.state.table import StateTable
from epochal.state.types import integer_of


def unexpired(table: StateTable, view: StateView, horizon: int | None) -> StateView:
    """``view`` without expired rows. ``horizon``: the result of ``StateTable.horizon`` for the applicable clock."""
    if horizon is None or table.expires is None:
        return view
    if table.time is not None and table.expires.column == table.time.name:
        return _ByKey(view, horizon)
    return _ByValue(view, table.value_schema.field(table.expires.column), horizon)


class _ByKey(StateView):
    """Expiry by the key's time: keys begin with the time, so expired rows come first in each key group."""

    def __init__(self, view: StateView, horizon: int) -> None:
        self._view = view
        self._first = first_key(horizon)

    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        found, values = self._view.lookup(groups, keys)
        return _without(found, values, np.asarray(pc.less(keys, pa.scalar(self._first, keys.type))))

    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        first = pa.scalar(self._first, low.type)
        return self._view.ranges(groups, pc.if_else(pc.fill_null(pc.less(low, first), True), first, low), high, limit)

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        return None if key < self._first else self._view.get(group, key)


class _ByValue(StateView):
    def __init__(self, view: StateView, field: pa.Field, horizon: int) -> None:
        self._view = view
        self._column = field.name
        self._horizon = horizon
        self._microseconds = integer_of(field.type)

    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        found, values = self._view.lookup(groups, keys)
        return _without(found, values, gone(values.column(self._column), self._horizon))

    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        # With a limit, later rows of the same range replace expired rows.
        parts: list[StateRows] = []
        missing = np.zeros(len(groups), np.int64) if limit is None else np.full(len(groups), limit)
        asked = np.arange(len(groups))
        while len(asked) or not parts:
            found = self._view.ranges(groups[asked], low.take(pa.array(asked)), high.take(pa.array(asked)), limit)
            kept = ~gone(found.values.column(self._column), self._horizon)
            mask = pa.array(kept)
            parts.append(StateRows(asked[found.owner[kept]], found.keys.filter(mask), found.values.filter(mask)))
            if limit is None:
                break
            missing -= np.bincount(parts[-1].owner, minlength=len(groups))
            read = np.bincount(found.owner, minlength=len(asked))
            ends = np.cumsum(read)
            on = np.flatnonzero((read == limit) & (missing[asked] > 0))
            low = _with_bounds(low, asked[on], [found.keys[end - 1].as_py() + b"\0" for end in ends[on].tolist()])
            asked = asked[on]
        return _joined(parts, len(groups), limit)

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        row = self._view.get(group, key)
        if row is None or row[self._column] is None:
            return row
        return None if self._microseconds(row[self._column]) <= self._horizon else row


def first_key(horizon: int) -> bytes:
    """The lower bound of the keys of a time-ordered table whose time is after ``horizon``."""
    return (min(horizon + 1, END) + (1 << 63)).to_bytes(8, "big")


def _without(found: Found, values: pa.Table, hidden: Mask) -> tuple[Found, pa.Table]:
    hidden = hidden & found
    if not hidden.any():
        return found, values
    return found & ~hidden, values.take(pa.array(np.arange(len(found)), mask=hidden))


def _with_bounds(bounds: pa.BinaryArray, places: np.ndarray[Any, Any], by: list[bytes]) -> pa.BinaryArray:
    changed: list[bytes | None] = bounds.to_pylist()
    for place, bound in zip(places.tolist(), by, strict=True):
        changed[place] = bound
    return pa.array(changed, bounds.type)


def _joined(parts: list[StateRows], ranges: int, limit: int | None) -> StateRows:
    if len(parts) == 1:
        return parts[0]
    owner = np.concatenate([part.owner for part in parts])
    order = np.argsort(owner, kind="stable")
    owner = owner[order]
    first = np.searchsorted(owner, np.arange(ranges))
    within = np.arange(len(owner)) - first[owner] < (len(owner) if limit is None else limit)
    chosen = pa.array(order[within])
    keys = pa.concat_arrays([part.keys for part in parts])
    return StateRows(owner[within], keys.take(chosen), pa.concat_tables([part.values for part in parts]).take(chosen))
