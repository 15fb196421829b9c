"""Programs in a graph as their authors wrote them: entries, state elements and results, not what they run as."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochal.declarations.entry import ENTRIES
from epochal.pipeline.description import GraphDescription, NodeDescription


@dataclass
class ShownProgram:
    """``stages``: its operators; ``served``: the entries that are called from outside, as people read them."""

    stages: list[NodeDescription]
    served: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.stages[0].description["program"])


@dataclass(frozen=True)
class ShownPrograms:
    """``fed``: by node the entry that a stream feeds, and its program; ``hidden``: nodes that stand for nothing that
    an author has written; ``results``: nodes whose columns are a program's results."""

    all: tuple[ShownProgram, ...]
    fed: Mapping[int, str]
    hidden: frozenset[int]
    results: frozenset[int]


def shown_programs(graph: GraphDescription) -> ShownPrograms:
    """Stages of one program are a chain; calls come to any of them, and answers leave from the last."""
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
    """The nodes between programs and what keeps their answers; all that keeps answers, where there are no others."""
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
