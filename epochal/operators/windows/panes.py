"""Panes and state tables of windows, and the work that merges them.

Windows on a grid are runs of panes. In session windows every row starts as a separate session.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from epochal.declarations import event_time
from epochal.declarations.expressions import Expression
from epochal.declarations.windows import WINDOW_END, WINDOW_START, FixedGrid, GridWindows, SessionWindows, Windowing
from epochal.errors import PipelineError
from epochal.operators.windows import sessions
from epochal.operators.windows.session_work import SESSION_END, SessionAggregateWork
from epochal.operators.windows.work import WINDOW, Merging, WindowAggregateWork
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks import windows

BUCKET: Final = "_session_bucket"
_PANE_START, _LAST_WINDOW_END = "pane_start", "last_window_end"


def late_before(windowing: Windowing, late: int) -> int:
    """The time before which a row is late under the watermark ``late``, in microseconds."""
    match windowing.windows:
        case SessionWindows(gap):
            return sessions.late_before(gap, late, windowing.allowed_lateness)
        case GridWindows() as grid:
            return windows.late_before(grid, late, windowing.allowed_lateness)


def pane_column(windowing: Windowing) -> str:
    """The name of the column :func:`pane`."""
    return WINDOW_START if isinstance(windowing.windows, SessionWindows) else pane_name(windowing.windows)


def pane(windowing: Windowing, time: str) -> Expression:
    """The start of the pane of a row, with its name in state and in tasks. ``time``: the event-time column."""
    match windowing.windows:
        case SessionWindows() as session:
            # Rows of one time are aggregated; the task merges them into sessions.
            start, _ = event_time.session_bounds(session, time)
            return start.alias(WINDOW_START)
        case GridWindows() as grid:
            return event_time.pane_start(grid, time).alias(pane_name(grid))


def aggregated_by(windowing: Windowing, time: str) -> Expression:
    """The grouping column for Spark's aggregation of an epoch, in addition to the key: pane, or bucket of sessions.

    Rows of one bucket are in one session, which the task merges with those of other buckets. A bucket depends only on
    the row, so that Spark aggregates rows before it shuffles them, without sorting.
    """
    if isinstance(windowing.windows, SessionWindows):
        return event_time.session_bucket(windowing.windows, time).alias(BUCKET)
    return pane(windowing, time)


def aggregated_bounds(windowing: Windowing, time: str) -> tuple[Expression, ...]:
    """Aggregates for tasks in place of :func:`aggregated_by`: the start and end of the session of a bucket."""
    if not isinstance(windowing.windows, SessionWindows):
        return ()
    start, end = event_time.session_of_rows(windowing.windows, time)
    return start.alias(WINDOW_START), end.alias(SESSION_END)


def tables(windowing: Windowing, partials: StateTable) -> tuple[StateTable, ...]:
    """The state tables of panes or sessions with the value columns of ``partials``."""
    match windowing.windows:
        case SessionWindows():
            return session_tables(partials, windowing)
        case GridWindows() as grid:
            return (pane_table(partials, grid, windowing),)


def merging_work(
    windowing: Windowing, merging: Merging, kept: tuple[StateTable, ...]
) -> WindowAggregateWork | SessionAggregateWork:
    """The work that merges partials in a task. ``kept``: the :func:`tables`."""
    lateness = windowing.allowed_lateness
    match windowing.windows:
        case SessionWindows(gap):
            of_sessions, entries = kept
            return SessionAggregateWork(merging, of_sessions, entries, gap, lateness)
        case GridWindows() as grid:
            return WindowAggregateWork(merging, kept[0], grid, lateness, windowing.emit)


def window_key(windowing: Windowing) -> tuple[str, ...]:
    """The columns that identify a window of a key."""
    cumulative = isinstance(windowing.windows, GridWindows) and windowing.windows.cumulative
    return (WINDOW_START, WINDOW_END) if cumulative else (WINDOW_START,)


def pane_table(table: StateTable, windows: GridWindows, windowing: Windowing) -> StateTable:
    """The state table of an operator with state by key and pane. ``table``: its value columns.

    A pane that is a window, as in tumbling windows, has the name of the window's start, unless the stored rows have the
    columns of other windows.
    """
    value, lateness = table.value, windowing.allowed_lateness
    taken = {column.name.casefold() for column in value}
    time = Column(name=pane_name(windows, taken), type="timestamp")
    if isinstance(windows.grid, FixedGrid):
        # If windows do not begin at every pane, some panes expire slightly later than necessary.
        expires = Expiry(clock="event", column=time.name, after=windows.panes * windows.grid.pane + lateness)
    else:
        is_window = windows.one_per_row and WINDOW_END not in taken
        ends = Column(name=WINDOW_END if is_window else _LAST_WINDOW_END, type="timestamp")
        value = (*value, ends)
        expires = Expiry(clock="event", column=ends.name, after=lateness)
    return table.model_copy(
        update={
            "time": time,
            "value": value,
            "expires": expires,
            "windows": windowing.state_details(),
            "merges": None if windows.one_per_row else table.merges,
        }
    )


def session_tables(partials: StateTable, windowing: Windowing) -> tuple[StateTable, StateTable]:
    """The table of open sessions, with ``partials``, and the table of entries: the times at which to check a key."""
    sessions = partials.model_copy(
        update={
            "sub_key": (WINDOW[0],),
            "value": (WINDOW[1], *partials.value),
            "expires": Expiry(clock="event", column=WINDOW_END, after=windowing.allowed_lateness + 1),
            "windows": windowing.state_details(),
            "merges": None,
        }
    )
    entries = StateTable(
        id=f"{partials.id}.entries",
        operator=partials.operator,
        kind=StateKind.VALUE,
        key=partials.key,
        time=Column(name="_at", type="timestamp"),
        value=(Column(name="_called", type="boolean"),),
        queryable=False,
        expires=Expiry(clock="event", column="_at", after=0),
    )
    return sessions, entries


def pane_name(windows: GridWindows, taken: Collection[str] = ()) -> str:
    """The name of the column with the start of a pane. ``taken``: the other columns, in lower case."""
    return WINDOW_START if windows.one_per_row and WINDOW_START not in taken else _PANE_START


def check_names(operator: str, table: StateTable) -> None:
    """Raises ``PipelineError``, with the fix, if two columns of the state have the same name."""
    seen: set[str] = set()
    for column in (*table.full_key, *table.value):
        if column.name.casefold() in seen:
            raise PipelineError(
                f"Operator {operator!r}: two columns of its state would be named {column.name!r}. Rename the key "
                "column or the aggregate of this name."
            )
        seen.add(column.name.casefold())
