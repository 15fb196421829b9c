"""Which columns each stateless verb needs of its streams, by those that are needed of what it gives. Without Spark.

What is not understood needs all: a column too many costs time, one too few would fail every epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from epochal.declarations.expressions import Expression
from epochal.declarations.references import columns_needed, is_found, is_star, renamed_column
from epochal.pipeline.graph import (
    CloseNode,
    Columns,
    ColumnsOf,
    EventTimeNode,
    FeedbackNode,
    Graph,
    Node,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
)

NO_COLUMNS: Columns = frozenset()


def together(*needed: Columns) -> Columns:
    found: set[str] = set()
    for columns in needed:
        if columns is None:
            return None
        found |= columns
    return frozenset(found)


def folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)


def filtered(condition: Expression) -> ColumnsOf:
    return lambda needed: together(needed, columns_needed([condition]))


def selected(columns: Sequence[Expression]) -> ColumnsOf:
    """Of columns that are handed on as they are, those that are needed."""

    def of(needed: Columns) -> Columns:
        if any(map(is_star, columns)):
            return None
        return columns_needed(column for column in columns if needed is None or _is_needed(column, needed))

    return of


def replaced(added: Mapping[str, Expression]) -> ColumnsOf:
    def of(needed: Columns) -> Columns:
        if needed is None:
            return None
        computed = [column for name, column in added.items() if name.casefold() in needed]
        return together(needed - folded(list(added)), columns_needed(computed))

    return of


def joined(columns: Sequence[str]) -> ColumnsOf:
    return lambda needed: together(needed, folded(columns))


def unchanged(needed: Columns) -> Columns:
    """Of what gives the columns that it reads."""
    return needed


def _is_needed(column: Expression, needed: frozenset[str]) -> bool:
    renamed = renamed_column(column)
    return renamed is None or renamed[1].casefold() in needed


def unread(graph: Graph, columns: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """By source, of its ``columns`` those that nothing reads. One of them is left at least, so that rows are rows."""
    needed = _needed(graph)
    found = {}
    for node in graph.sources:
        names, read = list(columns[node.name]), needed[node.id]
        if read is not None:
            left = [name for name in names if name.casefold() not in read and is_found(name)]
            found[node.name] = frozenset(left[1:] if len(left) == len(names) else left)
    return found


def _needed(graph: Graph) -> dict[NodeId, Columns]:
    """Of each node's rows the columns that its readers need."""
    needed: dict[NodeId, Columns] = {node.id: NO_COLUMNS for node in graph.nodes}
    for node in reversed(graph.nodes):
        if node.id in graph.needed:
            for id, columns in _reads(graph, node, needed[node.id]):
                needed[id] = together(needed[id], columns)
    return needed


def _reads(graph: Graph, node: Node, needed: Columns) -> Iterator[tuple[NodeId, Columns]]:
    """What a node reads of which, when ``needed`` are the columns that are needed of its own rows."""
    match node:
        case SourceNode() | StaticNode() | FeedbackNode():
            pass
        case TransformNode():
            columns = None if node.columns_of is None else node.columns_of(needed)
            for id in node.inputs:
                yield id, columns
        case EventTimeNode():
            yield node.input, together(needed, folded([node.event_time.column]))
        case OperatorNode():
            for number, (id, input) in enumerate(zip(node.inputs, node.operator.inputs, strict=True)):
                time = () if input.event_time is None else (input.event_time,)
                yield id, together(node.operator.computes_of(number), folded([*input.keys, *input.order_by, *time]))
        case SideNode():
            if node.by_engine:  # rows of what that node reads, as they are
                for id in inputs(graph.node(node.input)):
                    yield id, None
        case SinkNode() | CloseNode():
            yield node.input, None
