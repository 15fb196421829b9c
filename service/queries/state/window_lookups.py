"""Look-ups of windows that overlap: state has panes, and people ask for windows, which are merged of them.

Only the panes of the keys that are asked for are read. Windows that have closed at the snapshot are not there any more.
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
"""So many panes a batch may read."""


@dataclass(frozen=True)
class WindowFormat:
    """Keys and values of the windows of a table that keeps panes. A window is known by its key and its start."""

    table: StateTable

    @cached_property
    def keys(self) -> RowFormat:
        """The form of keys: as those of the table, with the window's start in the place of the pane's."""
        return RowFormat(self.table.model_copy(update={"time": _BOUNDS[0], "expires": None, "shown": ()}))

    def owner(self, key: Sequence[Any]) -> bytes:
        """What the keys of all panes begin with that a key, whole or the operator's alone, has."""
        return self.keys.encode_key(key[: len(self.table.key)])

    def key_of(self, key: dict[str, Any]) -> tuple[Any, ...]:
        """A key of a batch, an object with ``window_start``. Raises ``InvalidKey``."""
        found = key_from_json(key, self.keys.table.address)
        self.keys.encode_key(found)
        return found

    def is_one(self, key: Sequence[Any]) -> bool:
        """Whether it says which window: of cumulative ones several begin together."""
        return self.keys.is_whole(key) and not self._windows.cumulative

    def check_number(self, keys: Sequence[Any]) -> None:
        """Raises ``InvalidInput`` where the windows have more panes than are read at once."""
        if len(keys) * self._windows.panes > MOST_PANES:
            raise InvalidInput(
                f"{len(keys)} windows of state {self.table.id!r} are kept as {self._windows.panes} panes each, and at "
                f"most {MOST_PANES:,} panes are read at once: ask for {MOST_PANES // self._windows.panes} windows at a "
                "time."
            )

    def panes_of(self, key: Sequence[Any]) -> list[bytes]:
        """The keys of the panes of the longest window that begins at a key's time; none where no window does."""
        start = np.array([microseconds(key[-1])])
        windows = assigned(self._windows, start)
        mine = windows.starts == start
        if not mine.any():
            return []
        _, panes = panes_of(self._windows, start, windows.ends[mine].max(keepdims=True))
        owner = key[: len(self.table.key)]
        return [self.keys.encode_key((*owner, time)) for time in timestamps(panes).to_pylist()]

    def chosen(self, key: Sequence[Any], windows: Sequence[Object]) -> list[Object]:
        """Those that a key names."""
        if not self.keys.is_whole(key):
            return list(windows)
        start = to_json(key[-1], _BOUNDS[0].type)
        return [window for window in windows if window[WINDOW_START] == start]

    def value(self, window: Object) -> Object:
        """A window without what its key says."""
        return {name: value for name, value in window.items() if name != WINDOW_START}

    def windows(self, keys: Sequence[bytes], rows: Sequence[bytes | None], fire: int | None) -> list[Object]:
        """The open windows of one key as objects. ``rows``: of its panes, by ``keys``; ``fire``: the watermark."""
        there = [(key, row) for key, row in zip(keys, rows, strict=True) if row is not None]
        if not there:
            return []
        time = self.table.time
        assert time is not None  # it keeps panes
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
                f"State {self.table.id!r}: the panes of a window do not merge: {error}. A scan shows them one by one."
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
        assert self.table.windows is not None  # it keeps panes
        windows = declared_windows(self.table.windows["window"])
        assert isinstance(windows, GridWindows)  # sessions have no panes
        return windows

    @cached_property
    def _lateness(self) -> int:
        assert self.table.windows is not None  # it keeps panes
        return fixed_interval("allowed_lateness", self.table.windows.get("allowed_lateness", "0 seconds"), least=0)


def pane_note(table: StateTable) -> str | None:
    """What the rows of a table are, for people who see them as they are; ``None`` where each stands for itself."""
    windows = None if table.windows is None else declared_windows(table.windows["window"])
    if not isinstance(windows, GridWindows) or windows.one_per_row:
        return None
    said = ", ".join(f"{name} {value}" for name, value in windows.details().items() if name != "kind")
    looked_up = "Look-ups of a key show windows." if table.merges is not None else "Look-ups show panes, too."
    return f"Rows are panes, which several {windows.kind} windows ({said}) share, not windows. {looked_up}"


def window_format(table: StateTable) -> WindowFormat | None:
    """``None`` where look-ups show the rows of the table as they are."""
    return None if table.merges is None else _format(table.model_dump_json())


@lru_cache(maxsize=256)
def _format(table: str) -> WindowFormat:
    return WindowFormat(StateTable.model_validate_json(table))
