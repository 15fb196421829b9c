"""Kinds of streams: the kind of the output of each verb and node, and checks of their readers. No Spark is needed.

A verb of an append stream returns an append stream, and a stream that is not an upsert before a verb is not one after
it. The rules for upserts check that every key still has at most one row in an epoch, that this row is its complete new
value, and the names of the key columns. The rules for changes check that a retracted row is computed like the original
row: the verb must depend on the row only, and not on :data:`CHANGE`. Where this is unknown, the kind is ``updates``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from epochal.contracts.stream_kind import (
    APPEND,
    CHANGE,
    CHANGES,
    Accepted,
    Kind,
    StreamKind,
    only_append,
    same_columns,
    updates,
    upsert,
)
from epochal.declarations.expressions import Expression
from epochal.declarations.names import listed
from epochal.declarations.references import columns_read, is_star, multiplies_rows, renamed_column
from epochal.errors import PipelineError
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    KindOf,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
    place,
)

_MEANINGS = {
    Kind.APPEND: "rows that are final",
    Kind.UPSERT: "new values of keys, which replace earlier values",
    Kind.UPDATES: "rows that changed",
    Kind.CHANGES: "rows before and after each change",
}

_RECORDS = only_append(
    "Write append rows to the loop: use process() or process_batch() after it, whose rows are final."
)

Kinds = Mapping[NodeId, StreamKind]


def kinds_of(graph: Graph) -> Kinds:
    """The kinds of all streams. Tables, relations that are computed from tables only, and sinks have no kind. That of
    a sink with dead letters is the kind of its rejected rows."""
    kinds: dict[NodeId, StreamKind] = {}
    for node in graph.nodes:
        match node:
            case SourceNode() | FeedbackNode():
                kinds[node.id] = APPEND
            case TransformNode():
                streams = [kinds[id] for id in node.inputs if id in kinds]
                if streams:
                    kinds[node.id] = node.kind_of(streams)
            case EventTimeNode():
                kinds[node.id] = with_rejects(kinds[node.input])
            case OperatorNode():
                kinds[node.id] = node.operator.gives([kinds[id] for id in node.inputs])
            case SideNode():
                kinds[node.id] = (
                    kept_out([kinds[id] for id in inputs(graph.node(node.input))]) if node.by_engine else APPEND
                )
            case SinkNode() if node.rejects is not None:
                kinds[node.input] = APPEND
            case StaticNode() | CloseNode() | SinkNode():
                pass
    return kinds


def misfits(graph: Graph) -> tuple[str, ...]:
    """A message for each reader of a kind of stream that it does not accept: reader, origin, and the fix."""
    kinds = kinds_of(graph)
    return tuple(
        _message(graph, kinds, reader, accepted, id)
        for reader, accepted, id in _readers(graph)
        if not accepted.takes(kinds[id])
    )


def check_kinds(graph: Graph) -> None:
    """Raises ``PipelineError`` with the first of :func:`misfits`."""
    for message in misfits(graph):
        raise PipelineError(message)


def _readers(graph: Graph) -> Iterator[tuple[str, Accepted, NodeId]]:
    for node in graph.nodes:
        if isinstance(node, OperatorNode):
            for input, id in zip(node.operator.inputs, node.inputs, strict=True):
                yield f"Operator {node.name!r}", input.takes, id
        if isinstance(node, CloseNode):
            yield f"Loop {node.name!r}", _RECORDS, node.input
        if isinstance(node, SinkNode):
            yield f"Sink {node.name!r}", node.takes, node.input


def _message(graph: Graph, kinds: Kinds, reader: str, accepted: Accepted, id: NodeId) -> str:
    stream = kinds[id]
    meaning = _MEANINGS[stream.kind] + (f"; {stream.reason}" if stream.reason else "")
    origin = place(graph, _origin(graph, kinds, id))
    return f"{reader} accepts {accepted}, but {origin} returns {stream}: {meaning}. {accepted.fix(stream)}"


def _origin(graph: Graph, kinds: Kinds, id: NodeId) -> NodeId:
    """The node that determined the kind of a stream; transforms that pass the kind on are skipped."""
    node = graph.node(id)
    while isinstance(node, TransformNode):
        above = next((other for other in node.inputs if kinds.get(other) == kinds[id]), None)
        if above is None:
            break
        node = graph.node(above)
    return node.id


def filtered(condition: Expression) -> KindOf:
    """The kind after a filter. A condition over key columns only always has the same value for a key."""

    def of(stream: StreamKind) -> StreamKind:
        read = columns_read(condition)
        if read is not None and read <= _folded(stream.keys):
            return stream
        return updates("a key that no longer meets the condition would keep its last row that did")

    return _ruled(of, lambda stream: stream if _treats_alike([condition]) else updates(_TOLD_APART))


def selected(columns: Sequence[Expression]) -> KindOf:
    """The kind after a selection. Key columns can be renamed, but not removed or computed."""

    def of(stream: StreamKind) -> StreamKind:
        if any(map(multiplies_rows, columns)):
            return updates("it can return several rows of one key")
        renamed = [found for found in map(renamed_column, columns) if found is not None]
        every_column = any(map(is_star, columns))
        keys = []
        for key in stream.keys:
            names = [alias for column, alias in renamed if column.casefold() == key.casefold()]
            if every_column or key in names:
                keys.append(key)
            elif names:
                keys.append(names[0])
            else:
                return _without(key)
        return upsert(keys)

    def of_changes(stream: StreamKind) -> StreamKind:
        others = [column for column in columns if renamed_column(column) != _CHANGE_ITSELF and not is_star(column)]
        if len(others) == len(columns):
            return updates(_CHANGE_LOST)
        return stream if _treats_alike(others) else updates(_TOLD_APART)

    return _ruled(of, of_changes)


def replaced(names: Sequence[str], columns: Sequence[Expression]) -> KindOf:
    """The kind after added or replaced columns. Key columns must not be replaced."""

    def of(stream: StreamKind) -> StreamKind:
        if any(map(multiplies_rows, columns)):
            return updates("it can return several rows of one key")
        replaced = _folded(names)
        changed = [key for key in stream.keys if key.casefold() in replaced]
        return _without(changed[0]) if changed else stream

    def of_changes(stream: StreamKind) -> StreamKind:
        if CHANGE in _folded(names):
            return updates(_CHANGE_LOST)
        return stream if _treats_alike(columns) else updates(_TOLD_APART)

    return _ruled(of, of_changes)


def dropped(names: Sequence[str]) -> KindOf:
    def of(stream: StreamKind) -> StreamKind:
        left_out = [key for key in stream.keys if key.casefold() in _folded(names)]
        return _without(left_out[0]) if left_out else stream

    return _ruled(of, lambda stream: updates(_CHANGE_LOST) if CHANGE in _folded(names) else stream)


def joined(how: str) -> KindOf:
    """The kind after a join with a table. A left join keeps each row once if the table has at most one match."""

    def of(stream: StreamKind) -> StreamKind:
        if how == "left":
            return stream
        return updates("a key whose row loses its match, or gains one, would keep its last row")

    return _ruled(
        of, lambda stream: updates("another attempt can read other rows of the table when a row is retracted")
    )


def kept(streams: Sequence[StreamKind]) -> StreamKind:
    """The kind of a verb that does not change rows."""
    return streams[0]


def by_author(streams: Sequence[StreamKind]) -> StreamKind:
    """The kind after an author's function from DataFrame to DataFrame."""
    reason = "the effect of a function on rows and keys is unknown"
    return _ruled(lambda stream: updates(reason), lambda stream: updates(reason))(streams)


def with_rejects(stream: StreamKind) -> StreamKind:
    """The kind after ``with_watermark``, which removes rows with an invalid event time."""
    return _ruled(
        lambda upsert: updates("a key whose new row has no event time would keep its last row"),
        lambda changes: updates("a row that was rejected could be retracted later, when its time is valid"),
    )([stream])


def kept_out(streams: Sequence[StreamKind]) -> StreamKind:
    """The kind of rows that are removed from streams because of their event time."""
    some = updates("it has only the removed rows of a key")
    rule = _ruled(lambda upsert: some, lambda changes: some)
    return united([rule([stream]) for stream in streams])


def united(streams: Sequence[StreamKind]) -> StreamKind:
    """The kind of a union. Two streams can have values of the same key that do not replace each other."""
    if len(streams) == 1 or all(stream == APPEND for stream in streams):
        return streams[0]
    if all(stream.kind is Kind.CHANGES for stream in streams):
        return CHANGES
    if all(stream.kind is Kind.UPSERT and same_columns(stream.keys, streams[0].keys) for stream in streams):
        return updates("a key can be in several of its input streams")
    if all(stream.kind is Kind.UPDATES for stream in streams):
        return streams[0]
    return updates(f"it unites {listed(map(str, dict.fromkeys(streams)))}")


_CHANGE_ITSELF = (CHANGE, CHANGE)
_CHANGE_LOST = f"without the unchanged column {CHANGE!r} retracted rows cannot be recognised: select it too"
_TOLD_APART = f"an expression that depends on {CHANGE!r} or on the epoch time retracts other rows than it returned"


def _treats_alike(columns: Sequence[Expression]) -> bool:
    """Return whether a row and its retraction have the same values."""
    read = [columns_read(column) for column in columns]
    return all(names is not None and CHANGE not in names for names in read)


def _ruled(of_upsert: Callable[[StreamKind], StreamKind], of_changes: Callable[[StreamKind], StreamKind]) -> KindOf:
    def of(streams: Sequence[StreamKind]) -> StreamKind:
        match streams[0].kind:
            case Kind.UPSERT:
                return of_upsert(streams[0])
            case Kind.CHANGES:
                return of_changes(streams[0])
            case Kind.APPEND | Kind.UPDATES:
                return streams[0]

    return of


def _without(key: str) -> StreamKind:
    return updates(f"without the unchanged key column {key!r} replaced rows cannot be identified")


def _folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)
