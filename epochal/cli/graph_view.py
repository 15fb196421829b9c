"""A pipeline's graph as trees below its sources.

A node with several inputs is drawn below the first one. Programs are shown as their authors wrote them: entries, state
elements and results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text
from rich.tree import Tree

from epochal.cli import formatting
from epochal.declarations.entry import ENTRIES
from epochal.pipeline.description import GraphDescription, NodeDescription
from epochal.state.table import Column, StateTable

_STYLES = {
    "source": "bold green",
    "static": "bold green",
    "feedback": "bold blue",
    "close": "bold blue",
    "sink": "bold magenta",
    "transform": "",
}


_OPERATOR = "bold cyan"


_KINDS = {"static": "table", "feedback": "loop begins", "close": "loop is closed"}


def graph_tree(graph: GraphDescription) -> Tree:
    """Tree with names, kinds, options and kinds of streams; after an analysis also columns and state tables."""
    root = Tree(Text(graph.name, style="bold"), guide_style="dim")
    names = {node.id: node.name for node in graph.nodes}
    programs = shown_programs(graph)

    def draw(node: NodeDescription, below: Tree, reader_of: int | None = None) -> None:
        if reader_of is not None and node.inputs[0] != reader_of:
            below.add(Text(f"→ {node.name}", style="dim"))
            return
        if node.id in programs.fed:
            below.add(_entry(signature(node.description), f"entry of {programs.fed[node.id]}"))
            return
        branch = below.add(_label(node, [names[other] for other in node.inputs[1:]], node.id in programs.results))
        if node.type not in _STYLES:
            for table in graph.tables or ():
                if table.operator == node.name:
                    branch.add(_state(table))
        for consumer in graph.nodes:
            if node.id in consumer.inputs and consumer.id not in programs.hidden:
                draw(consumer, branch, node.id)

    for node in graph.nodes:
        if not node.inputs and node.id not in programs.hidden:
            draw(node, root)
    for program in programs.all:
        branch = root.add(Text.assemble((program.name, _OPERATOR), "  program"))
        stages = {stage.name for stage in program.stages}
        for table in graph.tables or ():
            if table.operator in stages:
                branch.add(_state(table))
        for entry in program.served:
            branch.add(_entry(entry, "entry, called from outside"))
        for node in graph.nodes:
            if node.id in programs.results and node.inputs[0] in {stage.id for stage in program.stages}:
                draw(node, branch)
    return root


def _entry(signature: str, kind: str) -> Text:
    return Text.assemble((signature, "bold green"), f"  {kind}")


def _label(node: NodeDescription, others: Sequence[str], with_columns: bool) -> Text:
    """Label of a node. ``with_columns``: also show the columns of a transform."""
    text = Text.assemble((node.name, _STYLES.get(node.type, _OPERATOR)))
    if node.type == "transform":
        text.append(f"  with {', '.join(others)}" if others else "", "dim")
        return _with_columns(_with_stream(text, node), node) if with_columns else _with_stream(text, node)
    kind = _KINDS.get(node.type, node.type)
    if node.type in _STYLES:
        options = {name: value for name, value in node.description.items() if name != "kind"}
        text.append(f"  {node.description.get('kind', '')} {kind}")
        text.append(f"  {formatting.values(options)}" if options else "", "dim")
    else:
        keys = ", ".join(node.description.get("keys", ()))
        text.append(f"  {kind} by {keys}" if keys else f"  {kind}")
        text.append(f"  with {', '.join(others)}" if others else "", "dim")
        number = node.description.get("parallelism")
        text.append("" if number is None else f"  parallelism {number}", "dim")
    return _with_columns(_with_stream(text, node), node)


def _with_columns(text: Text, node: NodeDescription) -> Text:
    if node.columns:
        text.append("  " + ", ".join(f"{name} {type}" for name, type in node.columns.items()), "dim")
    return text


def _with_stream(text: Text, node: NodeDescription) -> Text:
    return text if node.stream is None else text.append(f"  {node.stream}", "yellow")


def _state(table: StateTable) -> Text:
    def listed(of: Sequence[Column]) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in of)

    computed = [Column(name=column.name, type=column.type) for column in table.shown]
    kind = table.kind.value if table.scope.has_key else f"{table.scope.value} {table.kind.value}"
    visible = [*(column for column in table.visible if column.name not in table.partials), *computed]
    return Text.assemble(
        ("state ", "yellow"),
        (table.id, "bold yellow"),
        f"  {kind}: " if table.queryable else f"  {kind}, not {'queryable' if table.durable else 'durable'}: ",
        (f"{listed(table.address)} → {listed(visible)}", "dim"),
    )


@dataclass
class ShownProgram:
    """A program. ``stages``: its operators; ``served``: signatures of the entries that are called from outside."""

    stages: list[NodeDescription]
    served: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.stages[0].description["program"])


@dataclass(frozen=True)
class ShownPrograms:
    """Programs of a graph. ``fed``: program by node of an entry that a stream feeds; ``hidden``: nodes without a
    counterpart in the author's code; ``results``: nodes whose columns are a program's results."""

    all: tuple[ShownProgram, ...]
    fed: Mapping[int, str]
    hidden: frozenset[int]
    results: frozenset[int]


def shown_programs(graph: GraphDescription) -> ShownPrograms:
    """Find the programs of a graph. Stages of a program form a chain; any stage receives calls, the last one
    answers."""
    nodes = {node.id: node for node in graph.nodes}
    programs: list[ShownProgram] = []
    of_stage: dict[int, ShownProgram] = {}
    for node in graph.nodes:
        if node.type == "program":
            before = next((of_stage[id] for id in node.inputs if id in of_stage), None)
            if before is None:
                before = ShownProgram([])
                programs.append(before)
            before.stages.append(node)
            of_stage[node.id] = before
    hidden, fed = set(of_stage), dict[int, str]()
    for node in graph.nodes:
        if not node.description.keys() & {"parameters", "served"}:
            continue
        program = next(of_stage[stage.id] for stage in graph.nodes if node.id in stage.inputs)
        if "served" in node.description:
            hidden.add(node.id)
            program.served += map(signature, node.description["served"])
        else:
            fed[node.id] = program.name
    for node in graph.nodes:
        if node.type == "answers":
            hidden |= _answered_by_programs(node, nodes, of_stage, hidden)
    hidden |= {node.id for node in graph.nodes if node.type == "source" and _all_hidden(node, graph, hidden)}
    results = {node.id for node in graph.nodes if any(id in of_stage for id in node.inputs)} - hidden
    return ShownPrograms(tuple(programs), fed, frozenset(hidden), frozenset(results))


def signature(entry: Mapping[str, Any]) -> str:
    """``get(key string) → string``."""
    parameters = ", ".join(f"{name} {type}" for name, type in entry["parameters"].items())
    return f"{entry['entry']}({parameters})" + (f" → {entry['returns']}" if entry["returns"] else "")


def _is_inbox(node: NodeDescription) -> bool:
    return node.type == "source" and node.description.get("kind") == ENTRIES


def _answered_by_programs(
    answers: NodeDescription,
    nodes: Mapping[int, NodeDescription],
    of_stage: Mapping[int, ShownProgram],
    hidden: Collection[int],
) -> set[int]:
    """Nodes between programs and the operator that stores answers; the operator itself if only programs answer."""
    (both,) = answers.inputs
    above = {both, *nodes[both].inputs} - of_stage.keys()
    own = {id for id in above if any(each in of_stage for each in nodes[id].inputs)}
    (inbox,) = (node.id for node in nodes.values() if _is_inbox(node))
    taken = above & {id for id, node in nodes.items() if inbox in node.inputs}
    called = {id for id, node in nodes.items() if inbox in node.inputs} - taken
    only_own = above - {inbox} == {both, *taken, *own} and called <= set(hidden)
    return {answers.id, both, *taken, *own} if own and only_own else own


def _all_hidden(source: NodeDescription, graph: GraphDescription, hidden: set[int]) -> bool:
    readers = [node.id for node in graph.nodes if source.id in node.inputs]
    return bool(readers) and all(id in hidden for id in readers)
