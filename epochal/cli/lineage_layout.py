"""The drawing of a lineage as cells: a lane per line of snapshots, joined where it was forked. Pure, without colour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from epochal.client.models import Lineage, LineageNode
from epochal.contracts.identity import EpochKey

SHORTEST_RUN = 3


class Glyph(Enum):
    """What stands in one cell of the graph."""

    BLANK = "blank"
    LINE = "line"
    SNAPSHOT = "snapshot"
    FOLDED = "folded"
    JOIN = "join"
    """Where lanes end in this one: ``├``."""
    ACROSS = "across"
    """A joining lane passes over an empty lane: ``─``."""
    CROSS = "cross"
    """A joining lane passes over a lane that goes on: ``┼``."""
    TEE = "tee"
    """A lane ends, and one further right ends in the same join: ``┴``."""
    END = "end"
    """The outermost lane that ends: ``╯``."""


@dataclass(frozen=True)
class Cell:
    """A glyph, and the branch that it belongs to (for its colour)."""

    glyph: Glyph
    branch: str | None = None


BLANK = Cell(Glyph.BLANK)


@dataclass(frozen=True)
class Row:
    """One line of the drawing. ``entry`` is the index of the entry that it shows; ``None`` for a row of joins."""

    cells: tuple[Cell, ...]
    entry: int | None


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


@dataclass(frozen=True)
class _Lane:
    """A line on its way down to the entry ``awaits``."""

    branch: str
    awaits: int


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


def layout(entries: Sequence[Entry]) -> list[Row]:
    """Rows from newest to oldest; entries must stand before their parents."""
    rows: list[Row] = []
    lanes: list[_Lane | None] = []
    for index, entry in enumerate(entries):
        arriving = [number for number, lane in enumerate(lanes) if lane is not None and lane.awaits == index]
        column = arriving[0] if arriving else _free(lanes)
        if len(arriving) > 1:
            rows.append(_join(lanes, column, arriving[1:], entry.newest.branch))
            for number in arriving[1:]:
                lanes[number] = None
        glyph = Glyph.FOLDED if entry.folded else Glyph.SNAPSHOT
        cells = [BLANK if lane is None else Cell(Glyph.LINE, lane.branch) for lane in lanes]
        cells[column] = Cell(glyph, entry.newest.branch)
        rows.append(Row(_trimmed(cells), index))
        lanes[column] = None if entry.parent is None else _Lane(entry.oldest.branch, entry.parent)
        while lanes and lanes[-1] is None:
            lanes.pop()
    return rows


def _free(lanes: list[_Lane | None]) -> int:
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _join(lanes: Sequence[_Lane | None], column: int, ending: Sequence[int], branch: str) -> Row:
    """The row in which the lanes ``ending`` run left into ``column``."""
    cells: list[Cell] = []
    for number, lane in enumerate(lanes):
        if number == column:
            cells.append(Cell(Glyph.JOIN, branch))
        elif number in ending and lane is not None:
            cells.append(Cell(Glyph.END if number == ending[-1] else Glyph.TEE, lane.branch))
        elif column < number < ending[-1]:
            cells.append(Cell(Glyph.ACROSS) if lane is None else Cell(Glyph.CROSS, lane.branch))
        else:
            cells.append(BLANK if lane is None else Cell(Glyph.LINE, lane.branch))
    return Row(_trimmed(cells), None)


def _trimmed(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    kept = list(cells)
    while kept and kept[-1].glyph is Glyph.BLANK:
        kept.pop()
    return tuple(kept)
