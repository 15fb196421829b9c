"""The graph of an application with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from epochal.client.figures import Figures, figures
from epochal.client.models import Load, StateTable
from epochal.wire.versions import GraphAnswer, GraphNodeAnswer


@dataclass(frozen=True)
class ApplicationGraph:
    """The graph of the current version. ``graph``: ``None`` if the version was not analysed; ``load``: ``None`` if the
    application does not run."""

    application: str
    graph: GraphAnswer | None
    load: Load | None
    tables: Sequence[StateTable]

    @property
    def nodes(self) -> Sequence[GraphNodeAnswer]:
        return () if self.graph is None else self.graph.nodes

    @cached_property
    def figures(self) -> Mapping[int, Figures]:
        """Figures by the id of the node."""
        return {} if self.graph is None else figures(self.graph, self.load, self.tables)
