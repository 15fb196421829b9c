"""Tables that fit: columns as wide as their contents, and what has to give where the console is narrow.

No number and no value is cut: text for people is, and may be; where the rest does not fit, each row is shown as a
block of its own, a column a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
# A flexible column narrower than this says nothing; before that, optional columns are left out.
_LEAST_USEFUL = 20


@dataclass(frozen=True)
class Column:
    """``optional``: left out where there is no room, the last one first. ``flexible``: cut to the room that is left, or
    with ``folds`` continued on further lines."""

    title: str
    numeric: bool = False
    optional: bool = False
    flexible: bool = False
    folds: bool = False


class Listing:
    """A table without frames, one line for each row."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        """One row; a plain string is taken as it is, without markup."""
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = [self._natural(index) for index in range(len(self._columns))]
        kept = self._kept(natural, options.max_width)
        if self._needed(kept, natural) > options.max_width:
            yield from self._blocks()
            return
        widths = self._widths(kept, natural, options.max_width)
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        for index in kept:
            column = self._columns[index]
            table.add_column(
                column.title.upper(),
                justify="right" if column.numeric else "left",
                no_wrap=not column.folds,
                overflow="fold" if column.folds else "ellipsis",
                width=widths[index],
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        yield table

    def _natural(self, index: int) -> int:
        return max([len(self._columns[index].title), *(row[index].cell_len for row in self._rows)])

    def _kept(self, natural: Sequence[int], room: int) -> list[int]:
        kept = list(range(len(self._columns)))
        for index in reversed(range(len(self._columns))):
            if self._needed(kept, natural) > room and self._columns[index].optional:
                kept.remove(index)
        return kept

    def _needed(self, kept: Sequence[int], natural: Sequence[int]) -> int:
        return sum(self._least(index, natural) + GAP for index in kept) - GAP

    def _blocks(self) -> Iterator[RenderableType]:
        """Each row by itself, all of its columns below each other."""
        for number, row in enumerate(self._rows):
            if number:
                yield Text()
            block = Table.grid(padding=(0, GAP, 0, 0))
            block.add_column(style="dim", no_wrap=True)
            block.add_column(overflow="fold")
            for column, cell in zip(self._columns, row, strict=True):
                if cell.plain:
                    block.add_row(column.title.upper(), cell)
            yield block

    def _least(self, index: int, natural: Sequence[int]) -> int:
        return min(natural[index], _LEAST_USEFUL) if self._columns[index].flexible else natural[index]

    def _widths(self, kept: Sequence[int], natural: Sequence[int], room: int) -> dict[int, int]:
        widths = {index: natural[index] for index in kept if not self._columns[index].flexible}
        left = room - sum(widths.values()) - GAP * (len(kept) - 1)
        flexible = sorted((index for index in kept if self._columns[index].flexible), key=lambda index: natural[index])
        for position, index in enumerate(flexible):
            widths[index] = max(1, min(natural[index], left // (len(flexible) - position)))
            left -= widths[index]
        return widths
