"""Streams, keyed streams and connected streams.

Their verbs add nodes to the pipeline's graph; nothing is computed here. Stateless verbs are in
:mod:`epochal.pipeline.relation`, verbs of windows in :mod:`epochal.pipeline.windowed`. The modules ``*_verbs``
check the arguments of the stateful verbs and create their operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self, cast

from epochal.aggregates.mergeable import MergeableAggregate
from epochal.declarations.expressions import Expression
from epochal.declarations.keyed import BatchFunction, BroadcastProcess, KeyedProcess
from epochal.declarations.names import check_name, closest, listed
from epochal.declarations.time_to_live import TtlOn, refuse_time_to_live
from epochal.declarations.unkeyed import PartialProcess, UnkeyedProcess
from epochal.declarations.windows import Emit, Windows
from epochal.errors import PipelineError
from epochal.operators.contract import Operator
from epochal.operators.distinct.plan import DistinctOperator
from epochal.operators.standing_queries.plan import standing_queries
from epochal.pipeline import keyed_verbs, process_verbs
from epochal.pipeline.definitions import SinkDefinition
from epochal.pipeline.graph import Builder, Graph, NodeId, OperatorNode, SideNode, counts_hops
from epochal.pipeline.join_verbs import JoinedRelation
from epochal.pipeline.other_names import CONNECTED, KEYED, STREAM, NamesVerbs
from epochal.pipeline.sink_verbs import MAX_REJECTS, OnReject, add_sink
from epochal.pipeline.windowed import WindowedStream

_EVERY: Final = "_every"
"""The key column of a stream that is treated as one group."""


class Stream(JoinedRelation):
    """A stream of rows, processed epoch by epoch."""

    _other_names = STREAM

    def key_by(self, *columns: str) -> KeyedStream:
        """Group by these columns. A key column cannot be floating point, an array, a map or a struct.

        Rows with null in a key column form their own group, as in Spark's ``groupBy``.
        """
        if not columns:
            raise PipelineError("key_by() requires at least one column.")
        names: Sequence[object] = columns
        for column in names:
            if not isinstance(column, str) or not column:
                raise PipelineError(
                    f"key_by() takes names of columns, not {column!r}: add the expression as a column with "
                    "with_columns() first."
                )
        if len({column.casefold() for column in columns}) < len(columns):
            raise PipelineError(f"key_by({', '.join(columns)}) names a column twice.")
        return KeyedStream(self._builder, self._node, columns)

    def drop_duplicates(
        self,
        *columns: str,
        within: str | None = None,
        name: str = "drop_duplicates",
        queryable: bool = True,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the first of the rows that are equal in ``columns``. See :meth:`KeyedStream.drop_duplicates`."""
        return self.key_by(*columns).drop_duplicates(within, name, queryable, parallelism)

    def top(
        self,
        count: int,
        by: str | Sequence[str],
        *,
        within: Windows,
        name: str = "top",
        descending: bool = True,
        queryable: bool = True,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the ``count`` rows of each window with the greatest ``by``, over the whole stream.

        Rows are output when the window has closed, as by :meth:`KeyedStream.top` with one key that all rows share. One
        subtask processes all rows. For a large stream, first take the top of each part,
        ``key_by(..).top(.., within=..)``, and then the top of the result.
        """
        alone = self.select("*", f"0 AS {_EVERY}").key_by(_EVERY)
        return alone.top(count, by, name, descending, queryable, within, parallelism).drop(_EVERY)

    def side(self, name: str) -> Stream:
        """The side output ``name`` of ``process``, ``process_any`` or ``process_batch``: ``out.side("alerts")``.

        Call it on the stream that the verb returned.
        """
        node = self._builder.nodes[self._node]
        if not isinstance(node, OperatorNode):
            raise PipelineError(
                f"side({name!r}): only the stream that process() returns has side outputs. Call side() directly on it, "
                "before any other verb."
            )
        if name not in node.operator.sides:
            raise PipelineError(
                f"Operator {node.name!r} has no side output {name!r}; its class declares "
                f"{listed(node.operator.sides)} in sides.{closest(str(name), node.operator.sides)}"
            )
        return Stream(self._builder, self._builder.add(lambda id: SideNode(id, node.id, name)))

    def connect(self, control: Stream, *, broadcast: bool, order_by: str | Sequence[str] = ()) -> ConnectedStreams:
        """Connect a control stream: every subtask gets all of its rows, ordered by ``order_by``.

        Continue with ``key_by(..).process(..)``, which takes a :class:`~epochal.declarations.keyed.BroadcastProcess`.
        """
        if not isinstance(control, Stream):
            raise PipelineError(f"connect() takes a stream of this pipeline, not {type(control).__name__}.")
        self._check_same_pipeline(control, "connect")
        if control._node == self._node:
            raise PipelineError(
                "connect(): the control stream is the stream itself, so that every subtask would get all of its rows. "
                "Read the control rows from a separate stream, or filter them: connect(stream.where(..), ..)."
            )
        return ConnectedStreams(self, control, process_verbs.control_order(broadcast, order_by))

    def process_any(
        self,
        process: type[UnkeyedProcess],
        name: str | None = None,
        *,
        parallelism: int | None = None,
        **settings: Any,
    ) -> Stream:
        """Call ``process`` once per subtask and epoch, without a key. Rows are distributed round-robin.

        State tables: ``name.state``. The default name is derived from the class. ``settings`` replace class attributes.
        """
        return self._operator(process_verbs.unkeyed(process, name, settings), parallelism=parallelism)

    def process_partial(
        self,
        process: type[PartialProcess],
        name: str | None = None,
        *,
        requests: Stream | None = None,
        parallelism: int | None = None,
        **settings: Any,
    ) -> Stream:
        """Call ``process`` once per subtask and epoch, with partial state: each subtask has its own instance of it.

        Rows are distributed round-robin. All instances process each of the ``requests``, after the rows of the epoch.
        If the class merges the answers, the output is what ``merge`` yields. State tables: ``name.state``. The default
        name is derived from the class. ``settings`` replace class attributes.
        """
        operator, merging = process_verbs.partial(process, name, settings, requests is not None)
        if requests is None:
            instances: Stream = self._operator(operator, parallelism=parallelism)
        elif not isinstance(requests, Stream):
            raise PipelineError(f"requests must be a stream of this pipeline, not {type(requests).__name__}.")
        else:
            self._check_same_pipeline(requests, "process_partial")
            instances = requests._operator(operator, self, parallelism=parallelism)
        if merging is None:
            return instances
        return MergedStream(instances._operator(merging, parallelism=parallelism), instances)

    def standing_queries(
        self,
        name: str,
        windows: Sequence[str] = ("10 seconds", "1 day"),
        *,
        limit: int = 1_000,
        groups: int = 10_000,
        keep: str = "7 days",
        parallelism: int | None = None,
    ) -> Stream:
        """Allow users to add queries over this stream while the application runs (docs/reference/standing-queries.md)::

            events.with_watermark("at", "10 seconds").standing_queries("queries", windows=("1 minute", "1 hour"))

        ``windows``: the shortest and the longest window of a query; ``limit``: the maximum number of queries;
        ``groups``: the maximum number of groups of a query in a window. State table ``name``: the results, kept for
        ``keep``. The output has each result once, when its window closes: ``query bigint, window_start timestamp,
        window_end timestamp, group string, values string, error string``; group and values are JSON.
        """
        operator = standing_queries(check_name("an operator", name), self.event_time, windows, limit, groups, keep)
        return self._operator(operator, parallelism=parallelism)

    def write(
        self,
        name: str,
        sink: SinkDefinition,
        *,
        on_reject: OnReject = "fail",
        dead_letters: SinkDefinition | None = None,
        max_rejects: int = MAX_REJECTS,
    ) -> None:
        """Write every row to ``sink``. The name must be unique among the sinks of the pipeline.

        ``on_reject="dead_letter"``: rows that do not fit the target go to the sink ``dead_letters`` instead, in the
        same epoch: ``write("orders", postgresql.sink(..), on_reject="dead_letter", dead_letters=files.sink(path))``.
        Its name is ``{name}-rejected``, its columns are ``sink string, rejected_in_epoch bigint, subtask int, reason
        string, rejected_row string``; the row is JSON. An epoch with more than ``max_rejects`` of them fails. See
        docs/reference/sources-and-sinks.md.
        """
        add_sink(self._builder, self._node, name, sink, on_reject, dead_letters, max_rejects)

    def _of(self, node: NodeId) -> Self:
        return cast(Self, Stream(self._builder, node))  # verbs of subclasses return plain streams


class MergedStream(Stream):
    """The merged answers of the instances of a ``PartialProcess``."""

    def __init__(self, merged: Stream, instances: Stream) -> None:
        super().__init__(merged._builder, merged._node)
        self._instances = instances

    def side(self, name: str) -> Stream:
        """A side output of the instances; merging has no side outputs."""
        return self._instances.side(name)


class KeyedStream(NamesVerbs):
    """A stream grouped by key columns. Each of its verbs is an operator with its own state.

    ``parallelism=`` of a verb is the number of subtasks of this operator; by default it is that of the application.
    """

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
        parallelism: int | None = None,
        **columns: str | Expression | MergeableAggregate,
    ) -> Stream:
        """Aggregate per key over all epochs: ``aggregate("delays", flights="count(*)", worst=F.max("delay"))``.

        Each epoch outputs the keys that had rows, with their new values: an upsert by the key columns. State table:
        ``name``. An aggregate over rows that replace earlier rows (such as the output of another aggregate) is refused,
        unless ``over_updates`` states that every change counts.

        ``changes``: for each key whose values change, output the previous row with -1 in the column ``_change``, and
        the new row with +1. An aggregate over such a stream subtracts the former and adds the latter. See
        docs/reference/streams.md.

        ``ttl="7 days"``: a group without rows for this time is removed from the state; the next row starts a new group.
        The output is not changed. ``ttl_on="event_time"``: measure by the watermark instead of the epoch time.

        ``deleted_when="gone"``: the boolean aggregate that is true for deleted keys. Only their groups expire, ``ttl``
        after their last row. With ``changes`` the row of a key is retracted when the key is deleted.
        """
        operator = keyed_verbs.aggregate(
            Graph(name, tuple(self._builder.nodes)),
            self._node,
            name,
            self._keys,
            columns,
            queryable=queryable,
            over_updates=over_updates,
            changes=changes,
            event_time=self._event_time,
            ttl=ttl,
            ttl_on=ttl_on,
            deleted_when=deleted_when,
        )
        return self._operator(operator, parallelism)

    def window(
        self, windows: Windows, allowed_lateness: str = "0 seconds", emit: Emit = "final"
    ) -> WindowedStream[Stream]:
        """Divide the rows of each key into windows of event time::

            from epochal import session, sliding, tumbling

            clicks.key_by("page").window(tumbling("1 hour")).aggregate("hourly", clicks="count(*)")

        ``emit="final"``: output each window once, when the watermark passes its end plus ``allowed_lateness``.
        ``emit="updates"``: in each epoch, output the windows that had rows. Rows that are late for all of their windows
        go to ``late`` of the result.
        """
        time, declared = keyed_verbs.window_declaration(self._keys, self._event_time, windows, allowed_lateness, emit)
        return WindowedStream(self._operator, self._keys, time, declared)

    def distinct(self, name: str, queryable: bool = True, ttl: None = None, parallelism: int | None = None) -> Stream:
        """Output the key columns of each key once, in the epoch of its first row. State table: ``name``.

        Keys are kept without limit, so ``ttl`` is refused. :meth:`drop_duplicates` removes keys by event time.
        """
        instead = (
            "Each key is output only once, so that all keys must be kept. To remove old keys and output them again: "
            "with_watermark(..).key_by(..).drop_duplicates(within='7 days')."
        )
        refuse_time_to_live(f"Operator {name!r}: distinct()", ttl, instead)
        return self._operator(DistinctOperator(check_name("an operator", name), self._keys, queryable), parallelism)

    def drop_duplicates(
        self,
        within: str | None = None,
        name: str = "drop_duplicates",
        queryable: bool = True,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the first row of each key, with all columns. State table: ``name``.

        Among rows of the same epoch the first row is the one with the lowest event time, if there is one, and then with
        the lowest values of all columns. ``within="1 day"``: a row is a duplicate of a kept row if its event time is
        before that of the kept row, or less than a day after it. A key is removed from the state when no row can be its
        duplicate any more. This requires ``with_watermark(..)``.
        """
        operator = keyed_verbs.drop_duplicates(name, self._keys, self._event_time, within, queryable)
        return self._operator(operator, parallelism)

    def top(
        self,
        count: int,
        by: str | Sequence[str],
        name: str = "top",
        descending: bool = True,
        queryable: bool = True,
        within: Windows | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the ``count`` rows of each key with the greatest ``by`` (``descending=False``: the least).

        Each epoch outputs the ranks whose row has changed: the column ``rank``, from 1, follows the key columns. The
        output is an upsert by key and rank. Rows with equal ``by`` are ordered by their other columns. State table:
        ``name``, a map from rank to row.

        ``within=tumbling("1 hour")``: the top rows of each window, output when the window has closed. This is
        ``window(..).top(..)``, which also takes ``allowed_lateness`` and ``emit``.
        """
        if within is not None:
            return self.window(within).top(count, by, name, descending, queryable, parallelism)
        return self._operator(keyed_verbs.top(name, self._keys, count, by, descending, queryable), parallelism)

    def process(
        self,
        process: type[KeyedProcess],
        name: str | None = None,
        *,
        parallelism: int | None = None,
        **settings: Any,
    ) -> Stream:
        """Call ``process`` once per key and epoch, and ``on_timer`` for each timer that is due.

        State tables: ``name.state``. The default name is derived from the class. ``settings`` replace class attributes:
        ``process(LateStreaks, minutes=30)``.
        """
        hops = counts_hops(self._builder.nodes, [self._node])
        operator = process_verbs.keyed(self._keys, process, name, settings, self._event_time, hops)
        return self._operator(operator, parallelism)

    def process_batch(
        self,
        function: type[BatchFunction] | BatchFunction,
        name: str | None = None,
        *,
        parallelism: int | None = None,
    ) -> Stream:
        """Call ``function`` once per subtask and epoch, with Arrow tables and bulk access to state."""
        return self._operator(process_verbs.batch(self._keys, function, name), parallelism)

    @property
    def _event_time(self) -> str | None:
        return self._stream.event_time

    @property
    def _stream(self) -> Stream:
        return Stream(self._builder, self._node)

    def _operator(self, operator: Operator, parallelism: int | None) -> Stream:
        return self._stream._operator(operator, parallelism=parallelism)


class ConnectedStreams(NamesVerbs):
    """A stream and its control stream."""

    _other_names = CONNECTED

    def __init__(self, stream: Stream, control: Stream, order_by: tuple[str, ...]) -> None:
        self._stream = stream
        self._control = control
        self._order_by = order_by

    def key_by(self, *columns: str) -> ConnectedKeyedStreams:
        """Group the stream, not its control stream, by these columns. See :meth:`Stream.key_by`."""
        return ConnectedKeyedStreams(self._stream.key_by(*columns), self._control, self._order_by)


class ConnectedKeyedStreams(NamesVerbs):
    """A keyed stream and its control stream."""

    _other_names = CONNECTED

    def __init__(self, keyed: KeyedStream, control: Stream, order_by: tuple[str, ...]) -> None:
        self._keyed = keyed
        self._control = control
        self._order_by = order_by

    def process(
        self,
        process: type[BroadcastProcess],
        name: str | None = None,
        *,
        parallelism: int | None = None,
        **settings: Any,
    ) -> Stream:
        """Call ``process_broadcast`` for each control row on every subtask, then ``process`` for each key.

        State tables: ``name.state``. The default name is derived from the class. ``settings`` replace class attributes.
        """
        keyed = self._keyed
        operator = process_verbs.broadcast(keyed._keys, self._order_by, process, name, settings)
        return keyed._stream._operator(operator, self._control, parallelism=parallelism)
