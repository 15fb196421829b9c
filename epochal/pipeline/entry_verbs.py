"""The verbs of entries: ``Pipeline.entry`` and ``Pipeline.answer``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from epochal.declarations.entry import ANSWERS, DAY, ENTRIES, Entry, kept_for
from epochal.declarations.names import alternatives
from epochal.errors import PipelineError
from epochal.operators.entries.plan import Answering, AnswersOperator, EntryCalls, EntrySource, Taken
from epochal.operators.programs.served_calls import ServedAnswers, ServedStream
from epochal.pipeline import kinds
from epochal.pipeline.graph import Builder, Graph, Node, NodeId, OperatorNode, SourceNode, TransformNode
from epochal.pipeline.stream import Stream


def declare(builder: Builder, entry: Entry) -> Stream:
    """The stream of the calls of an entry."""
    source = source_of(builder, entry)
    return Stream(builder, _transform(builder, f"entry({entry.name})", source, EntryCalls(entry)))


def source_of(builder: Builder, entry: Entry) -> NodeId:
    """The one source of the calls of all entries, created with the first entry."""
    builder.claim("entry", entry.name)
    builder.claim("operator", entry.table)  # a state table has the name of its operator
    source = _source(builder.nodes)
    if source is None:
        builder.claim("source", ENTRIES)
        builder.claim("operator", ANSWERS)
        source = builder.add(lambda id: SourceNode(id, ENTRIES, EntrySource, {"kind": ENTRIES}))
    return source


def answer(builder: Builder, name: str, stream: Stream, ttl: str) -> None:
    """Answer the calls of an entry with the rows of ``stream``."""
    calls = [entry.name for entry in _declared(builder.nodes)]
    if name not in calls:
        raise PipelineError(f"There is no entry {name!r} to answer.{alternatives(str(name), calls)}")
    if not isinstance(stream, Stream):
        raise PipelineError(f"answer({name!r}) takes a stream of this pipeline, not {stream!r}.")
    if name in _kept(builder.nodes):
        raise PipelineError(f"Entry {name!r} is answered twice. Combine the streams with union() and answer it once.")
    kept_for(name, ttl)
    _transform(builder, f"answer({name})", stream._node, Answering(name, ttl))


def completed(builder: Builder) -> tuple[Node, ...]:
    """The nodes of a pipeline, with the operator that stores answers. Raises ``PipelineError`` for an entry with
    ``returns`` that is not answered."""
    declared, kept = _declared(builder.nodes), _kept(builder.nodes)
    source = _source(builder.nodes)
    if source is None:
        return tuple(builder.nodes)
    for found in declared:
        if found.name not in kept and found.returns is not None:
            raise PipelineError(
                f"Entry {found.name!r} returns {found.returns} but is not answered. Add "
                f"pipeline.answer({found.name!r}, stream), or leave returns= out."
            )
    rows = [Stream(builder, node.id) for node in builder.nodes if _answering(node) is not None]
    answering = map(_answering, builder.nodes)
    noted = {name for each in answering if isinstance(each, ServedAnswers) for name in each.kept}
    names = tuple(entry.name for entry in declared if entry.name not in noted)
    if names:
        taken = Taken(names, frozenset(names) - kept.keys())
        rows.insert(0, Stream(builder, _transform(builder, "calls", source, taken)))
    first, *others = rows
    above = (first.union(*others) if others else first)._node
    operator = AnswersOperator(tuple((entry, kept.get(entry.name, DAY)) for entry in declared))
    builder.add(lambda id: OperatorNode(id, (above,), operator))
    return tuple(_described(tuple(builder.nodes)))


def entries_of(graph: Graph) -> tuple[Entry, ...]:
    """The entries, in the order of declaration."""
    return tuple(_declared(graph.nodes))


def check_entries(graph: Graph) -> None:
    """Raises ``PipelineError`` for an entry whose calls are not used."""
    for node in graph.nodes:
        if isinstance(node, TransformNode) and isinstance(node.function, EntryCalls) and node.id not in graph.needed:
            name = node.function.entry.name
            raise PipelineError(f"The calls of entry {name!r} are not used. Use them, or remove the entry.")


def _described(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Add the entries to the source of calls and to its description."""
    declared = _declared(nodes)
    entries = [entry.details() | {"table": entry.table} for entry in declared]
    for node in nodes:
        if isinstance(node, SourceNode) and _is_source(node):
            make = partial(EntrySource, tuple(declared))
            yield SourceNode(node.id, node.name, make, {**node.description, "entries": entries})
        else:
            yield node


def _declared(nodes: Collection[Node]) -> list[Entry]:
    found, names = dict[str, Entry](), list[str]()
    for function in (node.function for node in nodes if isinstance(node, TransformNode)):
        if isinstance(function, EntryCalls):
            found[function.entry.name] = function.entry
            names.append(function.entry.name)
        elif isinstance(function, ServedStream):  # calls of one stage of a program
            found |= {each.entry.name: each.entry for each in function.entries}
        elif isinstance(function, ServedAnswers):
            names += function.kept
    return [found[name] for name in names]


def _kept(nodes: Collection[Node]) -> dict[str, str]:
    """The retention of answers, by answered entry."""
    found = (_answering(node) for node in nodes)
    return {entry: ttl for function in found if function is not None for entry, ttl in function.kept.items()}


def _answering(node: Node) -> Answering | ServedAnswers | None:
    """The function that turns rows into answers, if the node has one."""
    function = node.function if isinstance(node, TransformNode) else None
    return function if isinstance(function, Answering | ServedAnswers) else None


def _source(nodes: Collection[Node]) -> NodeId | None:
    return next((node.id for node in nodes if _is_source(node)), None)


def _is_source(node: Node) -> bool:
    return isinstance(node, SourceNode) and node.make is EntrySource


def _transform(builder: Builder, label: str, input: NodeId, function: EntryCalls | Taken | Answering) -> NodeId:
    return builder.add(lambda id: TransformNode(id, label, (input,), function, kinds.kept))
