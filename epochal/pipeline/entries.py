"""Entries: how an application is called, and answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from epochal.declarations.entries import DAY, ENTRIES, Entry, entry, kept_for
from epochal.declarations.names import alternatives
from epochal.errors import PipelineError
from epochal.operators.answers import Answering, AnswersOperator, Taken
from epochal.operators.entries import CallsOf, EntrySource
from epochal.pipeline import verb_kinds
from epochal.pipeline.graph import Graph, Node, NodeId, OperatorNode, SourceNode, TransformNode
from epochal.pipeline.stream import Stream

if TYPE_CHECKING:
    from epochal.pipeline.pipeline import Builder


def declare(
    builder: Builder,
    name: str,
    arguments: Mapping[str, str],
    optional: Collection[str],
    returns: str | None,
    description: str,
) -> Stream:
    """The calls of an entry. All entries have one source, which comes with the first of them."""
    declared = entry(name, arguments, optional, returns, description)
    builder.claim("entry", name)
    source = next((node.id for node in builder.nodes if _is_source(node)), None)
    if source is None:
        builder.claim("source", ENTRIES)
        source = builder.add(lambda id: SourceNode(id, ENTRIES, EntrySource, {"kind": ENTRIES}))
    return Stream(builder, _transform(builder, f"entry({name})", source, CallsOf(declared)))


def answer(builder: Builder, name: str, stream: Stream, ttl: str) -> None:
    """Let the rows of ``stream`` answer the calls of an entry."""
    calls = {entry.name: id for id, entry in _declared(builder.nodes)}
    if name not in calls:
        raise PipelineError(f"There is no entry {name!r} to be answered.{alternatives(str(name), calls)}")
    if not isinstance(stream, Stream):
        raise PipelineError(f"answer({name!r}) takes a stream of this pipeline, not {stream!r}.")
    if any(isinstance(node, OperatorNode) and _answers(node) == name for node in builder.nodes):
        raise PipelineError(f"Entry {name!r} is answered twice: union() the streams, and answer it once.")
    kept_for(name, ttl)
    answers = _transform(builder, f"answer({name})", stream._node, Answering(name))
    _keep(builder, calls[name], ttl, answers)


def completed(builder: Builder) -> tuple[Node, ...]:
    """The nodes of a pipeline, with what answers the calls that nothing answers. Raises ``PipelineError`` for an entry
    that returns something, and nothing says what."""
    answered = {_answers(node) for node in builder.nodes if isinstance(node, OperatorNode)}
    for id, found in _declared(builder.nodes):
        if found.name in answered:
            continue
        if found.returns is not None:
            raise PipelineError(
                f"Entry {found.name!r} returns {found.returns}, and nothing answers it: say "
                f"pipeline.answer({found.name!r}, stream), or leave returns= out."
            )
        _keep(builder, id, DAY, None)
    return tuple(_described(tuple(builder.nodes)))


def entries_of(graph: Graph) -> tuple[Entry, ...]:
    """In the order in which they were declared."""
    return tuple(entry for _, entry in _declared(graph.nodes))


def check_entries(graph: Graph) -> None:
    """Raises ``PipelineError`` for an entry whose calls nothing reads."""
    for id, found in _declared(graph.nodes):
        readers = [graph.node(reader) for reader in graph.consumers(id)]
        used = [node for node in readers if not (isinstance(node, TransformNode) and isinstance(node.function, Taken))]
        if not any(node.id in graph.needed for node in used):
            raise PipelineError(f"Nothing reads the calls of entry {found.name!r}: use them, or remove it.")


def _keep(builder: Builder, calls: NodeId, ttl: str, answers: NodeId | None) -> None:
    node = builder.nodes[calls]
    assert isinstance(node, TransformNode)
    assert isinstance(node.function, CallsOf)
    operator = AnswersOperator(node.function.entry, ttl)
    builder.claim("operator", operator.name)
    noted = _transform(builder, f"calls({operator.entry.name})", calls, Taken(answered=answers is None))
    if answers is not None:
        stream = Stream(builder, noted).union(Stream(builder, answers))
        noted = stream._node
    builder.add(lambda id: OperatorNode(id, (noted,), operator))


def _described(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """The source of calls says which entries there are: a description is of nodes."""
    entries = [entry.details() | {"table": entry.table} for _, entry in _declared(nodes)]
    for node in nodes:
        if isinstance(node, SourceNode) and _is_source(node):
            yield SourceNode(node.id, node.name, node.make, {**node.description, "entries": entries})
        else:
            yield node


def _declared(nodes: Collection[Node]) -> Iterator[tuple[NodeId, Entry]]:
    for node in nodes:
        if isinstance(node, TransformNode) and isinstance(node.function, CallsOf):
            yield node.id, node.function.entry


def _answers(node: OperatorNode) -> str | None:
    return node.operator.entry.name if isinstance(node.operator, AnswersOperator) else None


def _is_source(node: Node) -> bool:
    return isinstance(node, SourceNode) and node.make is EntrySource


def _transform(builder: Builder, label: str, input: NodeId, function: CallsOf | Taken | Answering) -> NodeId:
    return builder.add(lambda id: TransformNode(id, label, (input,), function, verb_kinds.kept))
