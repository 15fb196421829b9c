"""What the operators over windows share: the columns that say of which window a row is, and state by pane."""

from __future__ import annotations

from typing import Final

from epochal.declarations.windowing import WINDOW_END, WINDOW_START, Windowing
from epochal.declarations.windows import FixedGrid, GridWindows
from epochal.errors import PipelineError
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateTable

WINDOW: Final = (Column(name=WINDOW_START, type="timestamp"), Column(name=WINDOW_END, type="timestamp"))
_PANE_START, _LAST_WINDOW_END = "pane_start", "last_window_end"


def pane_table(table: StateTable, windows: GridWindows, windowing: Windowing) -> StateTable:
    """The state table of an operator whose rows are kept by key and pane. ``table``: what it keeps of each.

    A pane that is a window, as those of tumbling windows are, is known by the window's start.
    """
    time = Column(name=WINDOW_START if windows.one_per_row else _PANE_START, type="timestamp")
    value, lateness = table.value, windowing.allowed_lateness
    if isinstance(windows.grid, FixedGrid):
        # Panes of windows that do not begin with each of them stay a little longer than they must.
        expires = Expiry(clock="event", column=time.name, after=windows.panes * windows.grid.pane + lateness)
    else:
        ends = Column(name=WINDOW_END if windows.one_per_row else _LAST_WINDOW_END, type="timestamp")
        value = (*value, ends)
        expires = Expiry(clock="event", column=ends.name, after=lateness)
    return StateTable(
        id=table.id,
        operator=table.operator,
        kind=table.kind,
        key=table.key,
        sub_key=table.sub_key,
        time=time,
        value=value,
        shown=table.shown,
        queryable=table.queryable,
        expires=expires,
    )


def check_names(operator: str, table: StateTable) -> None:
    """Are the state's columns named apart? Raises ``PipelineError`` with the fix."""
    seen: set[str] = set()
    for column in (*table.full_key, *table.value):
        if column.name.casefold() in seen:
            raise PipelineError(
                f"Operator {operator!r}: two columns of its state would be named {column.name!r}. Rename the key "
                "column or the aggregate of this name."
            )
        seen.add(column.name.casefold())
