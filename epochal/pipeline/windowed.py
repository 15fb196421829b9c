"""Keyed streams cut into windows of event time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from epochal.aggregates.mergeable import MergeableAggregate
from epochal.declarations.expressions import Expression
from epochal.declarations.keyed import KeyedProcess, check_process, has_timers, with_settings
from epochal.declarations.names import check_name, listed
from epochal.declarations.state import declared_states
from epochal.declarations.windowing import WINDOW_COLUMNS, Windowing, windowing
from epochal.declarations.windows import SessionWindows
from epochal.errors import PipelineError
from epochal.operators.contract import Operator
from epochal.operators.windows.plan import SessionAggregateOperator, WindowAggregateOperator
from epochal.operators.windows.process_plan import WindowProcessOperator
from epochal.pipeline import row_verbs
from epochal.pipeline.aggregations import declared_aggregations
from epochal.pipeline.other_names import WINDOWED, NamesVerbs
from epochal.pipeline.stream import Stream, of_operator, operator_name

_FIX = 'Say first when a row happened: stream.with_watermark("ts", "10 seconds").key_by(..).window(..)'


class WindowedStream(NamesVerbs):
    """A stream grouped by key columns and windows. Each of its verbs is an operator with state of its own.

    What they give has columns ``window_start`` and ``window_end`` (its end is the first instant that is not in it), and
    ``window_time``, one microsecond before the end: the event time of the stream that they give.
    """

    _other_names = WINDOWED

    def __init__(
        self, add: Callable[[Operator], Stream], keys: tuple[str, ...], event_time: str, windowing: Windowing
    ) -> None:
        self._add = add
        self._keys = keys
        self._event_time = event_time
        self._windowing = windowing

    def aggregate(
        self,
        name: str,
        queryable: bool = True,
        over_updates: bool = False,
        **columns: str | Expression | MergeableAggregate,
    ) -> Stream:
        """Aggregates per key and window: ``aggregate("delays", flights="count(*)", worst=F.max("delay"))``.

        Gives the key columns, those of the window, and these. With ``emit="final"`` each window once, when it has
        closed; with ``emit="updates"``, in each epoch, the windows that had rows, with their new values: an upsert by
        key and window. State table: ``name``. ``over_updates`` as in :meth:`KeyedStream.aggregate`.
        """
        check_name("an operator", name)
        if not isinstance(over_updates, bool):
            raise PipelineError(f"Operator {name!r}: over_updates is True or False; rename the column of this name.")
        if isinstance(ttl := columns.get("ttl"), str) and "(" not in ttl:
            raise PipelineError(
                f"Operator {name!r} has ttl={ttl!r}: state of a window is gone when it has closed. Leave ttl out; "
                "allowed_lateness keeps windows open for longer."
            )
        aggregations = declared_aggregations(name, self._keys, columns)
        for column in columns:
            if column.casefold() in WINDOW_COLUMNS:
                raise PipelineError(
                    f"Operator {name!r}, column {column!r}: a column of the window has this name. Rename the aggregate."
                )
        sessions = isinstance(self._windowing.windows, SessionWindows)
        kind = SessionAggregateOperator if sessions else WindowAggregateOperator
        return self._add(
            kind(name, self._keys, self._event_time, self._windowing, aggregations, queryable, over_updates)
        )

    def top(
        self, count: int, by: str | Sequence[str], name: str = "top", descending: bool = True, queryable: bool = True
    ) -> Stream:
        """The ``count`` rows of each key and window with the greatest ``by``, or with ``descending=False`` the least.

        Gives the key columns, those of the window, ``rank``, from 1, and the rows' other columns. With ``emit="final"``
        each window once, when it has closed; with ``emit="updates"``, in each epoch, all ranks of the windows that had
        rows: an upsert by key, window and rank. Rows that are equal in ``by`` are in the order of their other columns.
        State table: ``name``, with the best ``rows`` of each pane, or session.
        """
        return self._add(
            row_verbs.window_top(name, self._keys, self._event_time, self._windowing, count, by, descending, queryable)
        )

    def process(self, process: type[KeyedProcess], name: str | None = None, **settings: Any) -> Stream:
        """Call ``process`` once per key and window, when the window has closed, with all of its rows::

            class Busiest(KeyedProcess):
                output = "page string, clicks int"
                order_by = "at"

                def process(self, key, rows, ctx):  # key.site, key.window_start, key.window_end
                    ...

        ``key`` has the window's bounds beside the key columns, and the rows given back get them as columns. Without
        ``order_by`` rows come in the order of event time. They are kept in state until then (state table
        ``name.rows``): where an aggregate will do, it keeps a number instead. ``settings`` replace class attributes.
        """
        operator = operator_name(name, process)
        where = f"Operator {operator!r}"
        with of_operator(operator):
            check_process(process)
            configured = with_settings(process, settings)
        if declared_states(process):
            raise PipelineError(
                f"{where}: window(..).process() calls a function with all rows of a window, and keeps no other state: "
                f"{process.__name__} declares {listed(declared_states(process))}. Remove it, and put what goes on from "
                "window to window into a second operator: window(..).process(..).key_by(..).process(..)."
            )
        if has_timers(process):
            raise PipelineError(
                f"{where}: window(..).process() calls a function when a window closes, and sets no timers: remove "
                "on_timer, or call it by key_by(..).process(..)."
            )
        if self._windowing.emit == "updates":
            raise PipelineError(
                f"{where}: window(..).process() is not there for emit='updates': a function gives any number of rows "
                "of a window, so that nobody could tell which of them a later call takes back. Leave emit out, or use "
                "window(..).aggregate(..) or .top(..), whose rows have a key."
            )
        return self._add(WindowProcessOperator(operator, self._keys, self._event_time, self._windowing, configured))


def windowed_stream(
    add: Callable[[Operator], Stream],
    keys: tuple[str, ...],
    event_time: str | None,
    windows: object,
    allowed_lateness: object,
    emit: object,
) -> WindowedStream:
    """``keyed.window(..)``. Raises ``PipelineError`` with the fix."""
    declared = windowing(windows, allowed_lateness, emit)
    if event_time is None:
        raise PipelineError(f"window(): the stream has no event time. {_FIX}.")
    for key in keys:
        if key.casefold() in WINDOW_COLUMNS:
            raise PipelineError(
                f"window(): the key column {key!r} has the name of a column that window() gives. Rename it before "
                f'key_by(): with_column("of_{key}", "{key}").'
            )
    return WindowedStream(add, keys, event_time, declared)
