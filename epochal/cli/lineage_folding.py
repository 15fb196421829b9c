"""From a lineage to the entries that a graph shows: runs of plain epochs folded, children before their parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epochal.client.models import Lineage, LineageNode
from epochal.contracts.identity import EpochKey

SHORTEST_RUN = 3


@dataclass(frozen=True)
class Entry:
    """One row's worth of the graph: a snapshot, or a folded run of them, newest first.

    ``parent`` is the entry that its oldest snapshot builds on, as its index in the list of entries; ``None`` at the
    start of an application, and where the lineage that was fetched ends.
    """

    nodes: tuple[LineageNode, ...]
    parent: int | None

    @property
    def folded(self) -> bool:
        return self.epochs > 1

    @property
    def epochs(self) -> int:
        """How many; a node may be a folded run itself."""
        return sum(node.epochs for node in self.nodes)

    @property
    def first(self) -> int:
        """The number of its oldest epoch."""
        return self.oldest.first

    @property
    def newest(self) -> LineageNode:
        return self.nodes[0]

    @property
    def oldest(self) -> LineageNode:
        return self.nodes[-1]


def entries(lineage: Lineage, fold: bool = True) -> list[Entry]:
    """All entries, each before its parent: the head's line first, and a line goes on until another has to join it."""
    nodes = {node.key: node for node in lineage.nodes}
    parents = {edge.target: edge.source for edge in lineage.edges if edge.source in nodes and edge.target in nodes}
    children: dict[EpochKey, list[EpochKey]] = defaultdict(list)
    for child, parent in parents.items():
        children[parent].append(child)
    forks = {edge.target for edge in lineage.edges if edge.kind != "epoch"}

    def plain(key: EpochKey) -> bool:
        node = nodes[key]
        named = node.savepoints or node.tags or node.pinned or node.message
        noted = named or node.changes or node.state != "committed" or key == lineage.head or key in forks
        return not noted and key in parents and len(children[key]) == 1

    ordered = _depth_first(lineage, parents, {key: len(children[key]) for key in nodes})
    runs = _runs(ordered, parents, plain) if fold else [[key] for key in ordered]
    row_of = {key: row for row, run in enumerate(runs) for key in run}
    return [
        Entry(
            nodes=tuple(nodes[key] for key in run),
            parent=row_of[parents[run[-1]]] if run[-1] in parents else None,
        )
        for run in runs
    ]


def _depth_first(
    lineage: Lineage, parents: Mapping[EpochKey, EpochKey], waiting: dict[EpochKey, int]
) -> list[EpochKey]:
    """Each tip's line down to the first snapshot that other lines still have to reach."""
    tips = [node.key for node in lineage.nodes if waiting[node.key] == 0]
    tips.sort(key=lambda key: key != lineage.head)  # stable: the others stay newest first
    ordered = []
    for tip in tips:
        current: EpochKey | None = tip
        while current is not None and waiting[current] == 0:
            ordered.append(current)
            current = parents.get(current)
            if current is not None:
                waiting[current] -= 1
    return ordered


def _runs(
    ordered: Sequence[EpochKey], parents: Mapping[EpochKey, EpochKey], plain: Callable[[EpochKey], bool]
) -> list[list[EpochKey]]:
    """Neighbours that are parent and child and both plain, together; runs too short to be worth folding, apart."""
    runs: list[list[EpochKey]] = []
    for key in ordered:
        last = runs[-1][-1] if runs else None
        if last is not None and plain(last) and plain(key) and parents[last] == key and last.branch == key.branch:
            runs[-1].append(key)
        else:
            runs.append([key])
    return [part for run in runs for part in ([run] if len(run) >= SHORTEST_RUN else [[key] for key in run])]
