"""The kind of every stream of a graph, and who reads what it does not take. No Spark is needed."""

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
    Kind.APPEND: "rows that stay",
    Kind.UPSERT: "new values of keys, which take the place of earlier ones",
    Kind.UPDATES: "rows that changed",
    Kind.CHANGES: "rows as they were and as they are",
}

_RECORDS = only_append(
    "Give the rows that are to go round again as rows: with process() or process_batch() behind it, whose rows stay."
)

Kinds = Mapping[NodeId, StreamKind]


def kinds_of(graph: Graph) -> Kinds:
    """The kinds of all streams; tables and what is computed from them alone have none, nor have sinks."""
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
            case StaticNode() | CloseNode() | SinkNode():
                pass
    return kinds


def misfits(graph: Graph) -> tuple[str, ...]:
    """For each reader of a stream of a kind that it does not take: both ends, and the fix."""
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
    return f"{reader} takes {accepted}; {origin} gives {stream}: {meaning}. {accepted.fix(stream)}"


def _origin(graph: Graph, kinds: Kinds, id: NodeId) -> NodeId:
    """The node that made a stream what it is: transforms that only hand the kind on are not it."""
    node = graph.node(id)
    while isinstance(node, TransformNode):
        above = next((other for other in node.inputs if kinds.get(other) == kinds[id]), None)
        if above is None:
            break
        node = graph.node(above)
    return node.id


def filtered(condition: Expression) -> KindOf:
    """A condition over the key columns alone holds for a key always or never."""

    def of(stream: StreamKind) -> StreamKind:
        read = columns_read(condition)
        if read is not None and read <= _folded(stream.keys):
            return stream
        return updates("a key that no longer meets the condition would keep its last row that did")

    return _ruled(of, lambda stream: stream if _treats_alike([condition]) else updates(_TOLD_APART))


def selected(columns: Sequence[Expression]) -> KindOf:
    """The key columns may be renamed, and neither left out nor computed."""

    def of(stream: StreamKind) -> StreamKind:
        if any(map(multiplies_rows, columns)):
            return updates("it may give several rows of one key")
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
    """Key columns stay as they are where no column is computed in their place."""

    def of(stream: StreamKind) -> StreamKind:
        if any(map(multiplies_rows, columns)):
            return updates("it may give several rows of one key")
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
    """With a table, which has at most one row for a row of the stream: a left join then keeps every row, once."""

    def of(stream: StreamKind) -> StreamKind:
        if how == "left":
            return stream
        return updates("a key whose row finds no partner any more, or now finds one, would keep its last row")

    return _ruled(
        of, lambda stream: updates("another attempt may read other rows of the table when a row is taken back")
    )


def kept(streams: Sequence[StreamKind]) -> StreamKind:
    """Of what hands rows on as they are."""
    return streams[0]


def by_author(streams: Sequence[StreamKind]) -> StreamKind:
    """An author's function from DataFrame to DataFrame."""
    reason = "what a function does with rows and keys cannot be known"
    return _ruled(lambda stream: updates(reason), lambda stream: updates(reason))(streams)


def with_rejects(stream: StreamKind) -> StreamKind:
    """``with_watermark`` keeps rows out whose event time cannot be."""
    return _ruled(
        lambda upsert: updates("a key whose new row has no event time would keep its last row that had"),
        lambda changes: updates("a row that was rejected would be taken back when its time can be"),
    )([stream])


def kept_out(streams: Sequence[StreamKind]) -> StreamKind:
    """What is kept out of streams because of its event time."""
    some = updates("of a key only those rows that were kept out are told")
    rule = _ruled(lambda upsert: some, lambda changes: some)
    return united([rule([stream]) for stream in streams])


def united(streams: Sequence[StreamKind]) -> StreamKind:
    """Two streams may have values of the same key, of which neither replaces the other's."""
    if len(streams) == 1 or all(stream == APPEND for stream in streams):
        return streams[0]
    if all(stream.kind is Kind.CHANGES for stream in streams):
        return CHANGES
    if all(stream.kind is Kind.UPSERT and same_columns(stream.keys, streams[0].keys) for stream in streams):
        return updates("a key may come from several of the streams that it unites")
    if all(stream.kind is Kind.UPDATES for stream in streams):
        return streams[0]
    return updates(f"it unites {listed(map(str, dict.fromkeys(streams)))}")


_CHANGE_ITSELF = (CHANGE, CHANGE)
_CHANGE_LOST = f"without column {CHANGE!r} as it was nobody can tell which rows are taken back: select it, too"
_TOLD_APART = f"what depends on {CHANGE!r} or on the time of the epoch takes back other rows than it gave"


def _treats_alike(columns: Sequence[Expression]) -> bool:
    """Whether a row and the one that takes it back come to the same."""
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
    return updates(f"without key column {key!r} as it was nobody can tell which row a row replaces")


def _folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)
