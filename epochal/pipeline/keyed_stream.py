"""Streams grouped by key: their verbs add operators with state to the pipeline's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epochal.aggregates.mergeable import MergeableAggregate
from epochal.contracts.stream_kind import CHANGES
from epochal.declarations.author_classes import check_times_to_live
from epochal.declarations.expressions import Expression
from epochal.declarations.keyed import (
    BatchFunction,
    KeyedProcess,
    check_batch_function,
    check_process,
    has_timers,
    with_settings,
)
from epochal.declarations.names import check_name
from epochal.declarations.time_to_live import TtlOn, check_clock_of_ttl, refuse_time_to_live
from epochal.declarations.timers import checked_hold
from epochal.declarations.windowing import Emit
from epochal.declarations.windows import Windows
from epochal.errors import PipelineError
from epochal.operators.aggregate.changes_plan import over_changes
from epochal.operators.aggregate.plan import AggregateOperator, with_time_to_live
from epochal.operators.contract import Operator
from epochal.operators.distinct.plan import DistinctOperator
from epochal.operators.process.plan import ProcessBatchOperator, ProcessOperator
from epochal.pipeline import event_time_verbs, row_verbs
from epochal.pipeline.aggregations import declared_aggregations, time_to_live_of
from epochal.pipeline.graph import Graph, NodeId, counts_hops
from epochal.pipeline.kinds import kinds_of
from epochal.pipeline.other_names import KEYED, NamesVerbs
from epochal.pipeline.stream import Stream, of_operator, operator_name, operator_stream
from epochal.pipeline.windowed import WindowedStream, windowed_stream

if TYPE_CHECKING:
    from epochal.pipeline.pipeline import Builder


class KeyedStream(NamesVerbs):
    """A stream grouped by key columns. Each of its verbs is an operator with state of its own."""

    _other_names = KEYED

    def __init__(self, builder: Builder, node: NodeId, keys: tuple[str, ...]) -> None:
        self._builder = builder
        self._node = node
        self._keys = keys

    def aggregate(
        self,
        name: str,
        queryable: bool = True,
        over_updates: bool = False,
        changes: bool = False,
        ttl: str | None = None,
        ttl_on: TtlOn = "processing_time",
        deleted_when: str | None = None,
        **columns: str | Expression | MergeableAggregate,
    ) -> Stream:
        """Aggregates per key over all epochs so far: ``aggregate("delays", flights="count(*)", worst=F.max("delay"))``.

        Gives, in each epoch, the keys that had rows, with their new values: an upsert by the key columns. State table:
        ``name``. Over rows that replace earlier ones (what another aggregate gives) it is refused, unless
        ``over_updates`` says that every change is to count.

        ``changes``: give of each key whose values change the row as it was, with -1 in the column ``_change``, and the
        row as it is, with +1. An aggregate over such a stream takes the ones back and adds the others; docs/streams.md.

        ``ttl="7 days"``: a group that had no row for that time leaves the state; the next row starts a new one.
        What was given of it stays as it is. ``ttl_on="event_time"``: by the watermark, not by epoch time.

        ``deleted_when="gone"``: the boolean aggregate that is true of deleted keys. Only their groups expire, ``ttl``
        after their last row; with ``changes`` a key's row is taken back when the key is deleted. docs/streams.md.
        """
        check_name("an operator", name)
        for option, value in (("over_updates", over_updates), ("changes", changes)):
            if not isinstance(value, bool):
                raise PipelineError(f"Operator {name!r}: {option} is True or False; rename the column of this name.")
        expires = time_to_live_of(name, ttl, ttl_on, deleted_when, columns)
        aggregations = declared_aggregations(name, self._keys, columns)
        operator = AggregateOperator(name, self._keys, aggregations, queryable, over_updates, changes)
        graph = Graph(name, tuple(self._builder.nodes))
        kind = kinds_of(graph)[self._node]
        if expires is not None:
            event_time = Stream(self._builder, self._node).event_time
            check_clock_of_ttl(f"Operator {name!r}", expires, event_time)
            return self._operator(with_time_to_live(operator, expires, event_time, kind))
        if kind == CHANGES:
            operator = over_changes(operator, graph.operator_above(self._node))
        return self._operator(operator)

    def window(self, windows: Windows, allowed_lateness: str = "0 seconds", emit: Emit = "final") -> WindowedStream:
        """Cut the rows of each key into windows of event time::

            from epochal import session, sliding, tumbling

            clicks.key_by("page").window(tumbling("1 hour")).aggregate("hourly", clicks="count(*)")

        ``emit="final"``: each window once, when the watermark has reached its end and ``allowed_lateness`` more.
        ``emit="updates"``: in each epoch, the windows that had rows. Rows that are late for all of their windows go to
        the result's ``late``.
        """
        time = event_time_verbs.column_of(self._builder, self._node)
        return windowed_stream(self._operator, self._keys, time, windows, allowed_lateness, emit)

    def distinct(self, name: str, queryable: bool = True, ttl: None = None) -> Stream:
        """The key columns of each key once, in the epoch in which the key first comes. State table: ``name``.

        Keys are kept for ever, so that ``ttl`` is refused: :meth:`drop_duplicates` forgets them by event time.
        """
        instead = (
            "A key comes out once, however long ago it came first. To forget keys and give them again: "
            "with_watermark(..).key_by(..).drop_duplicates(within='7 days')."
        )
        refuse_time_to_live(f"Operator {name!r}: distinct()", ttl, instead)
        return self._operator(DistinctOperator(check_name("an operator", name), self._keys, queryable))

    def drop_duplicates(
        self, within: str | None = None, name: str = "drop_duplicates", queryable: bool = True
    ) -> Stream:
        """The first row of each key, with all columns. State table: ``name``.

        Of rows that come in one epoch the first is that of the least event time, if there is one, and then by all
        columns. ``within="1 day"``: a row is a duplicate of one that was kept if it happened before that, or less than
        a day after. A key is forgotten when nothing can be its duplicate any more. It needs ``with_watermark(..)``.
        """
        event_time = Stream(self._builder, self._node).event_time
        return self._operator(row_verbs.drop_duplicates(name, self._keys, event_time, within, queryable))

    def top(
        self,
        count: int,
        by: str | Sequence[str],
        name: str = "top",
        descending: bool = True,
        queryable: bool = True,
        within: Windows | None = None,
    ) -> Stream:
        """The ``count`` rows of each key with the greatest ``by``, or with ``descending=False`` the least, so far.

        Gives, in each epoch, the ranks that another row has now: column ``rank``, from 1, after the key columns. An
        upsert by key and rank. Rows that are equal in ``by`` are in the order of their other columns. State table:
        ``name``, a map from rank to row.

        ``within=tumbling("1 hour")``: of each window, once, when it has closed: ``window(..).top(..)``, which takes
        ``allowed_lateness`` and ``emit`` as well.
        """
        if within is not None:
            return self.window(within).top(count, by, name, descending, queryable)
        return self._operator(row_verbs.top(name, self._keys, count, by, descending, queryable))

    def process(self, process: type[KeyedProcess], name: str | None = None, **settings: Any) -> Stream:
        """Call ``process`` once per key and epoch, and ``on_timer`` for each timer that is due.

        State tables: ``name.state``; the name is the class's, if not given. ``settings`` replace class attributes:
        ``process(LateStreaks, minutes=30)``.
        """
        operator = operator_name(name, process)
        with of_operator(operator):
            check_process(process)
            configured = with_settings(process, settings)
            event_time = Stream(self._builder, self._node).event_time
            check_times_to_live(configured, event_time)
            hold = checked_hold(configured, has_timers(configured), event_time)
        hops = counts_hops(self._builder.nodes, [self._node])
        return self._operator(ProcessOperator(operator, self._keys, configured, event_time, hold, hops))

    def process_batch(self, function: type[BatchFunction] | BatchFunction, name: str | None = None) -> Stream:
        """Call ``function`` once per subtask and epoch, with Arrow tables and bulk access to state."""
        operator = operator_name(name, function if isinstance(function, type) else type(function))
        with of_operator(operator):
            instance = check_batch_function(function)
        return self._operator(ProcessBatchOperator(operator, self._keys, instance))

    def _operator(self, operator: Operator) -> Stream:
        return operator_stream(self._builder, (self._node,), operator)
