"""Formatting of numbers, times, names and tables.

Tables never truncate numbers or values. Text may be truncated; if a row still does not fit, it is printed as a block
with one column per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from epochal.contracts.catalog import ShownDue
from epochal.drawing import texts
from epochal.wire.projects import full_name

GAP = 2


# Minimum useful width of a flexible column. Optional columns are omitted first.
_LEAST_USEFUL = 20


def age(then: datetime | None, now: datetime | None = None) -> str:
    """Age in its largest unit: ``just now``, ``41 s ago``, ``3 min ago``, ``5 h ago``, ``12 d ago``."""
    if then is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < 1:
        return "just now"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds // 86400)} d ago"


def minutes(seconds: float) -> str:
    """A duration: ``0 s``, ``90 s``, ``10 min``, ``2 h``."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:g} s"


def count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def imported_from(application: str, epoch: int, project: str, here: str) -> str:
    """Origin of an import or a fork into the project ``here``: ``pricing.orders @ epoch 12 (project pricing)``."""
    said = f"{full_name(project, application)} @ epoch {epoch}"
    return said if project == here else f"{said} (project {project})"


def size(bytes: int | None) -> str:
    """Bytes in binary units with three digits: ``812 B``, ``4.2 KiB``, ``31 MiB``."""
    return "" if bytes is None else texts.size(bytes)


def code(sha256: str | None) -> str:
    """The first digits of an artifact's SHA-256."""
    return "" if sha256 is None else sha256[:8]


def moment(time: datetime | None) -> str:
    """An event time in UTC, to the second."""
    return "–" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def due(next: ShownDue) -> str:
    """The time that opens the next epoch: ``2026-05-01 12:00:05 (processing time of 'reminders')``."""
    if next.clock == "processing":
        return f"{moment(next.at)} (processing time of {next.operator!r})"
    return f"{moment(next.at)} ({next.operator!r}, event time {moment(next.until)})"


def values(mapping: Mapping[str, Any]) -> str:
    """Values in the syntax of the command line: ``late_minutes=15, restart.max_restarts=2``."""
    return ", ".join(f"{name}={_value(value)}" for name, value in _flat(mapping))


def difference(before: Any, after: Any) -> str:
    """``10 → 15``, ``unset → "2026"``."""
    return " → ".join("unset" if value is None else json.dumps(value, ensure_ascii=False) for value in (before, after))


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if name == "spark" else f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Column:
    """``optional`` columns are omitted if there is no room, last first. ``flexible`` columns are truncated to the
    remaining width, or wrapped with ``folds``."""

    title: str
    numeric: bool = False
    optional: bool = False
    flexible: bool = False
    folds: bool = False


class Listing:
    """A table without borders, one line per row."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        """Add a row. Plain strings are not interpreted as markup."""
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
        """Render each row as a block with one line per column."""
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
