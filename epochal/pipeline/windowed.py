"""Keyed streams divided into windows of event time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from epochal.aggregates.mergeable import MergeableAggregate
from epochal.declarations.expressions import Expression
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.windows import Windowing
from epochal.operators.contract import Operator
from epochal.pipeline import keyed_verbs, process_verbs
from epochal.pipeline.other_names import WINDOWED, NamesVerbs

Output = TypeVar("Output")


class WindowedStream(NamesVerbs, Generic[Output]):
    """A stream grouped by key columns and windows. Each of its verbs is an operator with its own state, and takes
    ``parallelism=`` as those of a keyed stream.

    The output of the verbs has the columns ``window_start``, ``window_end`` (the first instant after the window), and
    ``window_time``, one microsecond before the end: the event time of the output.
    """

    _other_names = WINDOWED

    def __init__(
        self,
        add: Callable[[Operator, int | None], Output],
        keys: tuple[str, ...],
        event_time: str,
        windowing: Windowing,
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
        parallelism: int | None = None,
        **columns: str | Expression | MergeableAggregate,
    ) -> Output:
        """Aggregate per key and window: ``aggregate("delays", flights="count(*)", worst=F.max("delay"))``.

        The output has the key columns, the columns of the window, and the aggregates. With ``emit="final"`` each window
        appears once, when it has closed. With ``emit="updates"`` each epoch outputs the windows that had rows, with
        their new values: an upsert by key and window. State table: ``name``. ``over_updates`` as in
        :meth:`KeyedStream.aggregate`.
        """
        return self._add(
            keyed_verbs.window_aggregate(
                name, self._keys, self._event_time, self._windowing, columns, queryable, over_updates
            ),
            parallelism,
        )

    def top(
        self,
        count: int,
        by: str | Sequence[str],
        name: str = "top",
        descending: bool = True,
        queryable: bool = True,
        parallelism: int | None = None,
    ) -> Output:
        """Keep the ``count`` rows of each key and window with the greatest ``by`` (``descending=False``: the least).

        The output has the key columns, the columns of the window, ``rank`` (from 1), and the other columns of the rows.
        With ``emit="final"`` each window appears once, when it has closed. With ``emit="updates"`` each epoch outputs
        all ranks of the windows that had rows: an upsert by key, window and rank. Rows with equal ``by`` are ordered by
        their other columns. State table: ``name``, with the best ``rows`` of each pane or session.
        """
        return self._add(
            keyed_verbs.window_top(
                name, self._keys, self._event_time, self._windowing, count, by, descending, queryable
            ),
            parallelism,
        )

    def process(
        self,
        process: type[KeyedProcess],
        name: str | None = None,
        *,
        parallelism: int | None = None,
        **settings: Any,
    ) -> Output:
        """Call ``process`` once per key and window, when the window has closed, with all rows of the window::

            class Busiest(KeyedProcess):
                output = "page string, clicks int"
                order_by = "at"

                def process(self, key, rows, ctx):  # key.site, key.window_start, key.window_end
                    ...

        ``key`` has the key columns and the bounds of the window. The output has the bounds of the window as additional
        columns. Without ``order_by`` rows are in the order of event time. The state table ``name.rows`` keeps all rows
        until the window closes; an aggregate keeps one value instead, so prefer it where it suffices. ``settings``
        replace class attributes.
        """
        operator = process_verbs.windowed(self._keys, self._event_time, self._windowing, process, name, settings)
        return self._add(operator, parallelism)
