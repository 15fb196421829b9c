"""The drawing of a lineage as cells: a lane per line of snapshots, joined where it was forked. Pure, without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from epochal.cli.lineage_folding import Entry


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
class _Lane:
    """A line on its way down to the entry ``awaits``."""

    branch: str
    awaits: int


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
