"""Order and folding of a lineage: entries, each before its parent, in which runs of plain epochs are one.

Terminals and notebooks draw the entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epochal.contracts.identity import EpochKey
from epochal.drawing.lanes import Item
from epochal.wire.lineage import LineageAnswer, LineageNode

SHORTEST_RUN = 3


@dataclass(frozen=True)
class Entry:
    """One row of the graph: a snapshot, or a folded run of snapshots, newest first.

    ``parent`` is the index of the entry with the parent of its oldest snapshot; ``None`` at the start of an
    application and at the end of the fetched lineage.
    """

    nodes: tuple[LineageNode, ...]
    parent: int | None

    @property
    def folded(self) -> bool:
        return self.epochs > 1

    @property
    def epochs(self) -> int:
        """Number of epochs. A node may be a folded run."""
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


def entries(lineage: LineageAnswer, fold: bool = True) -> list[Entry]:
    """All entries, each before its parent. The head's line comes first; a line continues until another line joins
    it."""
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
    lineage: LineageAnswer, parents: Mapping[EpochKey, EpochKey], waiting: dict[EpochKey, int]
) -> list[EpochKey]:
    """Keys in order: each tip's line down to the first snapshot that another line still has to reach."""
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
    """Group adjacent plain snapshots that are parent and child. Runs shorter than ``SHORTEST_RUN`` are not folded."""
    runs: list[list[EpochKey]] = []
    for key in ordered:
        last = runs[-1][-1] if runs else None
        if last is not None and plain(last) and plain(key) and parents[last] == key and last.branch == key.branch:
            runs[-1].append(key)
        else:
            runs.append([key])
    return [part for run in runs for part in ([run] if len(run) >= SHORTEST_RUN else [[key] for key in run])]


def items(entries: Sequence[Entry]) -> list[Item]:
    """Items of the layout by lanes. Their lines are the branches."""
    return [
        Item(() if entry.parent is None else (entry.parent,), entry.newest.branch, entry.oldest.branch)
        for entry in entries
    ]
