"""Streams: their verbs add nodes to the pipeline's graph. Nothing is computed here.

The stateless verbs are those of :mod:`epochal.pipeline.relation`, those of keyed streams of
:mod:`epochal.pipeline.keyed_stream`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from epochal.declarations.event_time import OnReject, event_time
from epochal.declarations.expressions import Expression
from epochal.declarations.keyed import (
    with_settings,
)
from epochal.declarations.names import check_name, closest, listed, name_of_class
from epochal.declarations.time_to_live import refuse_time_to_live
from epochal.declarations.unkeyed import UnkeyedProcess, check_unkeyed
from epochal.declarations.windows import Windows
from epochal.errors import PipelineError, SchemaError
from epochal.operators.contract import Operator
from epochal.operators.joins.interval_plan import IntervalJoinKind
from epochal.operators.process.plan import ProcessAnyOperator
from epochal.operators.standing_queries.plan import standing_queries
from epochal.pipeline import event_time_verbs, row_verbs, stream_joins
from epochal.pipeline.definitions import SinkDefinition
from epochal.pipeline.graph import NodeId, OperatorNode, SideNode, SinkNode
from epochal.pipeline.other_names import STREAM
from epochal.pipeline.relation import Relation, StaticTable
from epochal.pipeline.stream_joins import LatestVersions

if TYPE_CHECKING:
    from epochal.declarations.partial import PartialProcess
    from epochal.pipeline.connected import ConnectedStreams
    from epochal.pipeline.keyed_stream import KeyedStream
    from epochal.pipeline.pipeline import Builder


class Stream(Relation):
    """Rows that come epoch by epoch."""

    _other_names = STREAM

    @property
    def event_time(self) -> str | None:
        """The column that says when a row happened; ``None`` where no :meth:`with_watermark` says so."""
        return event_time_verbs.column_of(self._builder, self._node)

    def with_watermark(
        self,
        column: str,
        delay: str,
        *,
        idle_after: str | None = None,
        max_ahead: str | None = None,
        on_reject: OnReject = "count",
        name: str | None = None,
    ) -> Stream:
        """Say that ``column``, a timestamp, is when a row happened, and by how much rows may be out of order::

            bids.with_watermark("at", "10 seconds", idle_after="1 minute", max_ahead="1 day")

        The watermark is ``delay`` behind the latest row, of each partition of the source where it has some, and the
        least of them counts. A partition without rows for ``idle_after`` holds up nobody. Rows without a time, or with
        one further ahead of the epoch's than ``max_ahead``, are rejected: counted and left out, or ``on_reject="fail"``
        fails the epoch. ``name``: of the declaration, in every snapshot; the column's, if not given.
        """
        declared = event_time(column, delay, idle_after=idle_after, max_ahead=max_ahead, on_reject=on_reject)
        return Stream(self._builder, event_time_verbs.declare(self._builder, self._node, declared, name))

    @property
    def rejected(self) -> Stream:
        """Right after :meth:`with_watermark`: the rows without a possible event time, with all their columns."""
        return Stream(self._builder, event_time_verbs.rejected(self._builder, self._node))

    @property
    def late(self) -> Stream:
        """Of what an operator over event time gives: the rows that came too late for it, as they came to it."""
        return Stream(self._builder, event_time_verbs.late(self._builder, self._node))

    @property
    def left_late(self) -> Stream:
        """Of a join of two streams: the rows of the left one that came too late for it, with their own columns."""
        return Stream(self._builder, event_time_verbs.late_of(self._builder, self._node, 0))

    @property
    def right_late(self) -> Stream:
        """Of a join of two streams: the rows of the right one (the versions) that came too late for it."""
        return Stream(self._builder, event_time_verbs.late_of(self._builder, self._node, 1))

    def join(
        self,
        other: StaticTable | Stream | LatestVersions,
        on: str | Sequence[str],
        how: IntervalJoinKind = "inner",
        *,
        within: tuple[str, str] | None = None,
        as_of: str | None = None,
        name: str | None = None,
        queryable: bool = True,
    ) -> Stream:
        """Join with a table, or with another stream, on columns that both have.

        With a table (``pipeline.table(..)``) each row is joined as it comes, ``how`` being inner, left, left_semi or
        left_anti. With a stream, each row finds the rows that are so near in event time, whichever comes first::

            impressions.join(clicks, on="ad", within=("0 seconds", "1 hour"), how="left")

        is, in SQL, ``clicks.ts BETWEEN impressions.ts AND impressions.ts + INTERVAL 1 HOUR``: ``within`` says, both
        bounds included, how much later the other row is; a negative bound, that it is earlier. Rows wait in state
        tables, ``name.left`` and ``name.right`` (``join.left``, if no name is given), until none can come for them;
        rows without a partner come out then. ``how`` may be right and full as well. Both streams need an event time.
        Without ``within``, rows of equal windows: ``on=["page", "window_start", "window_end"]``; or of equal event
        times, where both are in a column of one name that is in ``on``.

        With :meth:`latest` of a stream, each row gets the version that held at its event time ``as_of``; ``how`` is
        inner or left. State tables: ``name.rows``, which wait for the watermark, and ``name.versions``. Without
        ``as_of`` a row gets the newest version that there is when it is processed, those of its epoch included.
        """
        columns = stream_joins.key_columns(on)
        operator: Operator
        match other:
            case Stream():
                stream = other
                stream_joins.check_unused("a stream", as_of=as_of)
                operator = stream_joins.interval_join(self, other, columns, how, within, name, queryable)
            case LatestVersions():
                stream = other.stream
                stream_joins.check_unused("latest(..)", within=within)
                operator = stream_joins.temporal_join(self, other, columns, how, as_of, name, queryable)
            case _:
                stream_joins.check_unused("a table", within=within, as_of=as_of, name=name)
                return super().join(other, on, how)  # type: ignore[arg-type]  # which it checks
        self._check_same_pipeline(stream, "join")
        return operator_stream(self._builder, (self._node, stream._node), operator)

    def latest(
        self, *keys: str, order_by: str, deleted: str | Expression | None = None, ttl: None = None
    ) -> LatestVersions:
        """The rows of this stream as versions of their keys, to :meth:`join` with::

            orders.join(rates.latest("currency", order_by="at"), on="currency", as_of="ordered_at")

        Of a key that version holds which is newest by ``order_by``. A version for which ``deleted``, a condition, is
        true says that from there on there is none. ``order_by`` itself is not in the output of the join. The newest
        version of each key is kept, so that ``ttl`` is refused.
        """
        instead = (
            "A version holds until the next one of its key, however late that comes. To end one, give a version for "
            "which deleted= is true."
        )
        refuse_time_to_live("latest()", ttl, instead)
        return stream_joins.latest(self, keys, order_by, deleted)

    def key_by(self, *columns: str) -> KeyedStream:
        """Group by these columns, for state. A key column cannot be floating point, an array, a map or a struct.

        Rows with null in a key column are a group of their own, as in Spark's ``groupBy``.
        """
        if not columns:
            raise PipelineError("key_by() needs at least one column.")
        _check_key_names(columns)
        if len({column.casefold() for column in columns}) < len(columns):
            raise PipelineError(f"key_by({', '.join(columns)}) names a column twice.")
        from epochal.pipeline.keyed_stream import KeyedStream

        return KeyedStream(self._builder, self._node, columns)

    def drop_duplicates(
        self, *columns: str, within: str | None = None, name: str = "drop_duplicates", queryable: bool = True
    ) -> Stream:
        """Of the rows that are equal in ``columns`` the first. As :meth:`KeyedStream.drop_duplicates`."""
        return self.key_by(*columns).drop_duplicates(within=within, name=name, queryable=queryable)

    def top(
        self,
        count: int,
        by: str | Sequence[str],
        *,
        within: Windows,
        name: str = "top",
        descending: bool = True,
        queryable: bool = True,
    ) -> Stream:
        """The ``count`` rows of each window of the whole stream with the greatest ``by``, when the window has closed.

        As :meth:`KeyedStream.top` of one key that all rows have. One subtask gets them all: of a large stream take the
        top of each part first, ``key_by(..).top(.., within=..)``, and of what that gives the top.
        """
        alone = self.select("*", f"0 AS {row_verbs.EVERY}").key_by(row_verbs.EVERY)
        return alone.top(count, by, name, descending, queryable, within).drop(row_verbs.EVERY)

    def side(self, name: str) -> Stream:
        """The rows that the function of ``process`` gives to its side output ``name``: ``alerts = out.side("alerts")``.

        To be called on the stream that ``process`` (or ``process_any``, ``process_batch``) gave.
        """
        node = self._builder.nodes[self._node]
        if not isinstance(node, OperatorNode):
            raise PipelineError(
                f"side({name!r}) is for the stream that process() gave: call it there, before any other verb."
            )
        if name not in node.operator.sides:
            raise PipelineError(
                f"Operator {node.name!r} has no side output {name!r}; its class declares "
                f"{listed(node.operator.sides)} in sides.{closest(str(name), node.operator.sides)}"
            )
        return Stream(self._builder, self._builder.add(lambda id: SideNode(id, node.id, name)))

    def connect(self, control: Stream, *, broadcast: bool, order_by: str | Sequence[str] = ()) -> ConnectedStreams:
        """Put a control stream beside this one: every subtask gets all of its rows, in the order of ``order_by``.

        Go on with ``key_by(..).process(..)``, which takes a :class:`~epochal.declarations.broadcast.BroadcastProcess`.
        """
        if not isinstance(control, Stream):
            raise PipelineError(f"connect() takes a stream of this pipeline, not {type(control).__name__}.")
        self._check_same_pipeline(control, "connect")
        if broadcast is not True:
            raise PipelineError(
                "connect() gives every subtask all rows of the control stream: say broadcast=True. To give each key "
                "its own rows of both streams, union() them."
            )
        columns = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        if not columns or not all(columns):
            raise PipelineError(
                "connect() needs order_by: the columns of the control stream that say in which order its rows hold, "
                "such as order_by='at'. Without them every subtask would take them in another order."
            )
        if control._node == self._node:
            raise PipelineError(
                "connect() was given the stream itself as its control stream: every subtask would get all of its rows. "
                "Read the rows that control from a stream of their own, or filter them: "
                "connect(stream.where(..), ..)."
            )
        from epochal.pipeline.connected import ConnectedStreams

        return ConnectedStreams(self, control, columns)

    def process_any(self, process: type[UnkeyedProcess], name: str | None = None, **settings: Any) -> Stream:
        """Call ``process`` once per subtask and epoch, without a key, over rows that are dealt to the subtasks in turn.

        State tables: ``name.state``; the name is the class's, if not given. ``settings`` replace class attributes.
        """
        operator = operator_name(name, process)
        with of_operator(operator):
            check_unkeyed(process)
            configured = with_settings(process, settings)
        return operator_stream(self._builder, (self._node,), ProcessAnyOperator(operator, configured))

    def standing_queries(
        self,
        name: str,
        windows: Sequence[str] = ("10 seconds", "1 day"),
        *,
        limit: int = 1_000,
        groups: int = 10_000,
        keep: str = "7 days",
    ) -> Stream:
        """Let people ask queries of this stream while the application runs (docs/standing-queries.md)::

            events.with_watermark("at", "10 seconds").standing_queries("queries", windows=("1 minute", "1 hour"))

        ``windows``: the shortest and the longest that they may ask for; ``limit``: so many queries at a time;
        ``groups``: so many of a query in a window. State table ``name``: the results, kept for ``keep`` after they came
        out. The stream has each once, when its window closes: ``query bigint, window_start timestamp, window_end
        timestamp, group string, values string, error string``; group and values are JSON.
        """
        operator = standing_queries(check_name("an operator", name), self.event_time, windows, limit, groups, keep)
        return operator_stream(self._builder, (self._node,), operator)

    def process_partial(
        self,
        process: type[PartialProcess],
        name: str | None = None,
        *,
        requests: Stream | None = None,
        **settings: Any,
    ) -> Stream:
        """Call ``process`` once per subtask and epoch, with partial state: an instance of its own in each subtask.

        Rows are dealt to the subtasks in turn. All instances get each of ``requests``, after the epoch's rows; where
        the class merges what they answer, the stream is what ``merge`` gives. State tables: ``name.state``; the name is
        the class's, if not given. ``settings`` replace class attributes.
        """
        from epochal.pipeline.partial import process_partial

        return process_partial(self, process, requests, name, settings)

    def write(self, name: str, sink: SinkDefinition) -> None:
        """Write every row to ``sink``, under a name unique among the pipeline's sinks."""
        check_name("a sink", name)
        if not isinstance(sink, SinkDefinition):
            raise PipelineError(f"Sink {name!r} is {sink!r}: give one of epochal.connectors, such as files.sink(path).")
        self._builder.claim("sink", name)
        description = {"kind": sink.kind, **sink.description}
        self._builder.add(
            lambda id: SinkNode(
                id, name, self._node, sink.make, sink.takes, description, sink.deliveries, sink.delivery
            )
        )


def operator_stream(builder: Builder, inputs: tuple[NodeId, ...], operator: Operator) -> Stream:
    builder.claim("operator", operator.name)
    return Stream(builder, builder.add(lambda id: OperatorNode(id, inputs, operator)))


@contextmanager
def of_operator(name: str) -> Iterator[None]:
    """What is wrong with an author's class is wrong with the operator ``name``."""
    try:
        yield
    except (PipelineError, SchemaError) as error:
        raise type(error)(f"Operator {name!r}: {error.message}") from None


def operator_name(name: str | None, implementation: Any) -> str:
    return check_name("an operator", name or name_of_class(getattr(implementation, "__name__", "operator")))


def _check_key_names(columns: Sequence[object]) -> None:
    for column in columns:
        if not isinstance(column, str) or not column:
            raise PipelineError(
                f"key_by() takes names of columns, not {column!r}: name an expression with with_columns() first."
            )
