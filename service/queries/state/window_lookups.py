"""Look-ups of overlapping windows: state has panes, from which windows are merged.

Only the panes of the requested keys are read. Windows that have closed at the snapshot no longer exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochal.aggregates.kept_merges import merged
from epochal.contracts.conditions import BEGINNING, END, microseconds
from epochal.declarations.intervals import fixed_interval
from epochal.declarations.windows import WINDOW_END, WINDOW_START, GridWindows, declared_windows
from epochal.errors import InvalidInput
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.state.json_form import key_from_json, to_json
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import Column, StateTable
from epochal.tasks.row_runs import Runs, reduced
from epochal.tasks.values import column_of
from epochal.tasks.windows import assigned, closed_until, occupied, panes_of, times_of, timestamps

_BOUNDS = (Column(name=WINDOW_START, type="timestamp"), Column(name=WINDOW_END, type="timestamp"))
Object = dict[str, Any]
MOST_PANES: Final = 100_000
"""Maximum number of panes that a batch reads."""


@dataclass(frozen=True)
class WindowFormat:
    """Keys and values of the windows of a table with panes. A window is identified by its key and its start."""

    table: StateTable

    @cached_property
    def keys(self) -> RowFormat:
        """Format of keys: those of the table, with the window's start in place of the pane's."""
        return RowFormat(self.table.model_copy(update={"time": _BOUNDS[0], "expires": None, "shown": ()}))

    def owner(self, key: Sequence[Any]) -> bytes:
        """Common prefix of the keys of all panes of a key, complete or the operator's alone."""
        return self.keys.encode_key(key[: len(self.table.key)])

    def key_of(self, key: dict[str, Any]) -> tuple[Any, ...]:
        """A key of a batch, an object with ``window_start``. Raises ``InvalidKey``."""
        found = key_from_json(key, self.keys.table.address)
        self.keys.encode_key(found)
        return found

    def is_one(self, key: Sequence[Any]) -> bool:
        """Return whether the key identifies one window: several cumulative windows have the same start."""
        return self.keys.is_whole(key) and not self._windows.cumulative

    def check_number(self, keys: Sequence[Any]) -> None:
        """Raise ``InvalidInput`` above the maximum number of panes."""
        if len(keys) * self._windows.panes > MOST_PANES:
            raise InvalidInput(
                f"{len(keys)} windows of state {self.table.id!r} consist of {self._windows.panes} panes each, and the "
                f"maximum is {MOST_PANES:,} panes: request at most {MOST_PANES // self._windows.panes} windows in one "
                "call."
            )

    def panes_of(self, key: Sequence[Any]) -> list[bytes]:
        """Keys of the panes of the longest window that begins at a key's time; none if no window does."""
        start = np.array([microseconds(key[-1])])
        windows = assigned(self._windows, start)
        mine = windows.starts == start
        if not mine.any():
            return []
        _, panes = panes_of(self._windows, start, windows.ends[mine].max(keepdims=True))
        owner = key[: len(self.table.key)]
        return [self.keys.encode_key((*owner, time)) for time in timestamps(panes).to_pylist()]

    def chosen(self, key: Sequence[Any], windows: Sequence[Object]) -> list[Object]:
        """The windows that a key selects."""
        if not self.keys.is_whole(key):
            return list(windows)
        start = to_json(key[-1], _BOUNDS[0].type)
        return [window for window in windows if window[WINDOW_START] == start]

    def value(self, window: Object) -> Object:
        """A window without the columns of its key."""
        return {name: value for name, value in window.items() if name != WINDOW_START}

    def windows(self, keys: Sequence[bytes], rows: Sequence[bytes | None], fire: int | None) -> list[Object]:
        """The open windows of one key as objects. ``rows``: rows of its panes, by ``keys``; ``fire``: the watermark."""
        there = [(key, row) for key, row in zip(keys, rows, strict=True) if row is not None]
        if not there:
            return []
        time = self.table.time
        assert time is not None  # tables with panes have it
        addresses = KeyCodec(self.table.address_schema).decode([key for key, _ in there])
        panes = times_of(column_of(addresses, time.name))
        values = RowCodec(self.table.value_schema).decode([row for _, row in there])
        order = np.argsort(panes, kind="stable")
        after = BEGINNING if fire is None else closed_until(self._windows, fire, self._lateness)
        found = occupied(self._windows, np.zeros(len(panes), np.int64), panes[order], after, END)
        columns = self.table.merges or ()
        names = [name for each in columns for name in each.columns.values()]
        kept = values.select(names).take(pa.array(order)).combine_chunks()
        try:
            partials = reduced(kept, Runs(found.firsts, found.lasts), partial(merged, columns))
        except OverflowError as error:
            raise InvalidInput(
                f"State {self.table.id!r}: the panes of a window cannot be merged: {error}. A scan shows them "
                "separately."
            ) from error
        ends = np.lexsort((found.ends, found.starts))
        bounds = pa.table([timestamps(found.starts), timestamps(found.ends)], names=[WINDOW_START, WINDOW_END])
        bounds, partials = bounds.take(pa.array(ends)), partials.take(pa.array(ends))
        return [self._object(*row) for row in zip(bounds.to_pylist(), partials.to_pylist(), strict=True)]

    def _object(self, bounds: Object, kept: Object) -> Object:
        columns = [column for column in self.table.value if column.name in kept]
        shown = {column.name: to_json(value, column.type) for column, value in self.table.shown_of(kept)}
        said = {column.name: to_json(bounds[column.name], column.type) for column in _BOUNDS}
        return said | {column.name: to_json(kept[column.name], column.type) for column in columns} | shown

    @cached_property
    def _windows(self) -> GridWindows:
        assert self.table.windows is not None  # tables with panes have it
        windows = declared_windows(self.table.windows["window"])
        assert isinstance(windows, GridWindows)  # sessions have no panes
        return windows

    @cached_property
    def _lateness(self) -> int:
        assert self.table.windows is not None  # tables with panes have it
        return fixed_interval("allowed_lateness", self.table.windows.get("allowed_lateness", "0 seconds"), least=0)


def pane_note(table: StateTable) -> str | None:
    """Explanation of a table's raw rows for people; ``None`` if rows need no explanation."""
    windows = None if table.windows is None else declared_windows(table.windows["window"])
    if not isinstance(windows, GridWindows) or windows.one_per_row:
        return None
    said = ", ".join(f"{name} {value}" for name, value in windows.details().items() if name != "kind")
    looked_up = "Look-ups of a key show windows." if table.merges is not None else "Look-ups show panes, too."
    return f"Rows are panes, which several {windows.kind} windows ({said}) share, not windows. {looked_up}"


def window_format(table: StateTable) -> WindowFormat | None:
    """``None`` if look-ups show the rows of the table unchanged."""
    return None if table.merges is None else _format(table.model_dump_json())


@lru_cache(maxsize=256)
def _format(table: str) -> WindowFormat:
    return WindowFormat(StateTable.model_validate_json(table))
