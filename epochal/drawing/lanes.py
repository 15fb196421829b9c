"""Layout of a graph as rows and lanes, as git draws its history: one row for each item, a lane for each line.

Items stand before those to which their lines lead. Lines to one item join before its row; lines from one item part
after its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Glyph(Enum):
    """Content of one cell."""

    BLANK = "blank"
    LINE = "line"
    ITEM = "item"
    JOIN = "join"
    """Lanes end or begin in this lane: ``├``."""
    ACROSS = "across"
    """A line crosses an empty lane: ``─``."""
    CROSS = "cross"
    """A line crosses a continuing lane: ``┼``."""
    TEE = "tee"
    """A lane ends, and one further right ends in the same join: ``┴``."""
    END = "end"
    """The outermost lane that ends: ``╯``."""
    TEE_DOWN = "tee down"
    """A lane begins, and one further right begins at the same item: ``┬``."""
    BEGIN = "begin"
    """The outermost lane that begins: ``╮``."""


LEFT_OF_RUN = frozenset({Glyph.JOIN, Glyph.ACROSS, Glyph.CROSS, Glyph.TEE, Glyph.TEE_DOWN})
"""Glyphs from which a horizontal line may lead to the right."""
RUN = frozenset({Glyph.ACROSS, Glyph.CROSS, Glyph.TEE, Glyph.END, Glyph.TEE_DOWN, Glyph.BEGIN})
"""Glyphs that a horizontal line from the left reaches."""


@dataclass(frozen=True)
class Cell:
    """A glyph and the name of its line, which determines the colour."""

    glyph: Glyph
    line: str | None = None


BLANK = Cell(Glyph.BLANK)


@dataclass(frozen=True)
class Item:
    """``to``: indexes of later items to which lines lead. ``line``: name of the line of the item; ``below``: name of
    the lines that leave it."""

    to: tuple[int, ...]
    line: str = ""
    below: str = ""


@dataclass(frozen=True)
class Row:
    """One row. ``item``: index of the item; ``None`` for a row in which lines join or part."""

    cells: tuple[Cell, ...]
    item: int | None

    @property
    def lane(self) -> int:
        """The lane of the item."""
        return next(lane for lane, cell in enumerate(self.cells) if cell.glyph is Glyph.ITEM)


@dataclass(frozen=True)
class _Lane:
    """A lane that continues down to the item ``awaits``."""

    line: str
    awaits: int


def rows(items: Sequence[Item]) -> list[Row]:
    """Rows of the items in their order, and between them the rows in which lines join or part."""
    found: list[Row] = []
    lanes: list[_Lane | None] = []
    for index, item in enumerate(items):
        arriving = [number for number, lane in enumerate(lanes) if lane is not None and lane.awaits == index]
        column = arriving[0] if arriving else _free(lanes)
        if len(arriving) > 1:
            found.append(_between(lanes, column, arriving[1:], item.line, Glyph.TEE, Glyph.END))
            for number in arriving[1:]:
                lanes[number] = None
        cells = [BLANK if lane is None else Cell(Glyph.LINE, lane.line) for lane in lanes]
        if not arriving and found and _is_item(found[-1], column):
            # Otherwise the item would look like the next one of the line that has ended.
            found.append(Row(_trimmed(cells), None))
        cells[column] = Cell(Glyph.ITEM, item.line)
        found.append(Row(_trimmed(cells), index))
        targets = [_Lane(item.below, target) for target in dict.fromkeys(item.to)]
        lanes[column] = targets[0] if targets else None
        beginning = [_begun(lanes, column, lane) for lane in targets[1:]]
        if beginning:
            found.append(_between(lanes, column, sorted(beginning), item.below, Glyph.TEE_DOWN, Glyph.BEGIN))
        while lanes and lanes[-1] is None:
            lanes.pop()
    return found


def _is_item(row: Row, lane: int) -> bool:
    return lane < len(row.cells) and row.cells[lane].glyph is Glyph.ITEM


def _free(lanes: list[_Lane | None], right_of: int = -1) -> int:
    for number in range(right_of + 1, len(lanes)):
        if lanes[number] is None:
            return number
    lanes.append(None)
    return len(lanes) - 1


def _begun(lanes: list[_Lane | None], column: int, lane: _Lane) -> int:
    number = _free(lanes, column)
    lanes[number] = lane
    return number


def _between(
    lanes: Sequence[_Lane | None], column: int, others: Sequence[int], line: str, tee: Glyph, outermost: Glyph
) -> Row:
    """The row in which the lanes ``others``, all right of ``column``, join it or leave it."""
    cells: list[Cell] = []
    for number, lane in enumerate(lanes):
        if number == column:
            cells.append(Cell(Glyph.JOIN, line))
        elif number in others and lane is not None:
            cells.append(Cell(outermost if number == others[-1] else tee, lane.line))
        elif column < number < others[-1]:
            cells.append(Cell(Glyph.ACROSS) if lane is None else Cell(Glyph.CROSS, lane.line))
        else:
            cells.append(BLANK if lane is None else Cell(Glyph.LINE, lane.line))
    return Row(_trimmed(cells), None)


def _trimmed(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    kept = list(cells)
    while kept and kept[-1].glyph is Glyph.BLANK:
        kept.pop()
    return tuple(kept)


def topological(inputs: Sequence[Iterable[int]]) -> list[int]:
    """Indexes in an order in which each stands after its ``inputs``, close to the last one if possible.

    Unknown inputs, and inputs that would close a cycle, are ignored.
    """
    number = len(inputs)
    waits = [{each for each in found if 0 <= each < number and each != index} for index, found in enumerate(inputs)]
    readers: list[list[int]] = [[] for _ in range(number)]
    for index, found in enumerate(waits):
        for each in sorted(found):
            readers[each].append(index)
    placed: dict[int, None] = {}
    for begin in [*(index for index in range(number) if not waits[index]), *range(number)]:
        ready = [begin]
        while ready:
            index = ready.pop()
            if index in placed:
                continue
            placed[index] = None
            ready += [each for each in reversed(readers[index]) if waits[each] <= placed.keys()]
    return list(placed)
