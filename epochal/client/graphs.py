"""The graph of an application with its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from epochal.client.figures import ENDS, SIDES, Figures, described, figures
from epochal.drawing import texts
from epochal.drawing.graph import Node, graph_svg
from epochal.wire.applications import LoadAnswer
from epochal.wire.state import StateTableAnswer
from epochal.wire.versions import GraphAnswer, GraphNodeAnswer


@dataclass(frozen=True)
class ApplicationGraph:
    """The graph of the current version. ``graph``: ``None`` if the version was not analysed; ``load``: ``None`` if the
    application does not run."""

    application: str
    graph: GraphAnswer | None
    load: LoadAnswer | None
    tables: Sequence[StateTableAnswer]

    @property
    def nodes(self) -> Sequence[GraphNodeAnswer]:
        return () if self.graph is None else self.graph.nodes

    @cached_property
    def figures(self) -> Mapping[int, Figures]:
        """Figures by the id of the node."""
        return {} if self.graph is None else figures(self.graph, self.load, self.tables)

    def _repr_html_(self) -> str:
        """The graph with its figures as a picture for notebooks."""
        return graph_svg(f"Graph of {self.application}", drawn_nodes(self.nodes, self.figures))


def drawn_nodes(nodes: Sequence[GraphNodeAnswer], found: Mapping[int, Figures]) -> list[Node]:
    """Nodes for a picture."""
    position = {node.id: index for index, node in enumerate(nodes)}
    return [
        Node(
            name=node.name,
            shape=_shape(node),
            kind=described(node),
            inputs=tuple(position[id] for id in node.inputs if id in position),
            facts=tuple(_facts(found.get(node.id, Figures()))),
            hint=", ".join(f"{name} {texts.value(of)}" for name, of in node.description.items() if name != "kind"),
            hot=found.get(node.id, Figures()).slowest,
        )
        for node in nodes
    ]


def _shape(node: GraphNodeAnswer) -> Literal["source", "operator", "sink", "plain"]:
    if node.type in ENDS:
        return "sink" if node.type == "sink" else "source"
    return "plain" if node.type in SIDES else "operator"


def _facts(of: Figures) -> Iterator[str]:
    speed = [] if of.rate is None else [texts.rate(of.rate)]
    busy = [] if of.busy is None else [f"{texts.share(of.busy)} busy"]
    if speed or busy:
        yield " · ".join([*speed, *busy])
    if of.state:
        yield of.state
    if of.warnings:
        yield ", ".join(of.warnings)
