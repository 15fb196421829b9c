"""SVG drawing of a tree of snapshots: a row for each snapshot or folded run, newest first, and a lane for each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochal.drawing.lanes import Item, rows
from epochal.drawing.svg import ACCENTS, document, text, width_of
from epochal.drawing.texts import clipped, count, escaped

MOST_ROWS = 200
"""Maximum number of rows; further ones are counted only."""
_ROW, _LANE, _MARGIN, _RADIUS = 26.0, 20.0, 14.0, 5.5
_MOST_LANES, _LONGEST = 40, 110


@dataclass(frozen=True)
class Snapshot:
    """One row: a snapshot, or a folded run. ``parent``: index of a later row; ``line``, ``below``: branches of its
    newest and oldest snapshot; ``hollow``: not committed; ``continues``: its parent is not part of the drawing."""

    epochs: str
    line: str
    below: str
    parent: int | None = None
    notes: str = ""
    counts: str = ""
    details: str = ""
    folded: bool = False
    hollow: bool = False
    continues: bool = False


def lineage_svg(title: str, snapshots: Sequence[Snapshot], empty: str, more: str = "", style: str = "") -> str:
    """The drawing. Each snapshot stands above its parent. ``more``: a last line about snapshots that are missing."""
    shown = snapshots[:MOST_ROWS]
    cut = len(snapshots) - len(shown)
    laid = rows([Item(_targets(each, len(shown)), each.line, each.below) for each in shown])
    lanes = {row.item: row.lane for row in laid if row.item is not None}
    colours = _colours(shown)
    left = _MARGIN + (min(_MOST_LANES, max(lanes.values(), default=-1) + 1)) * _LANE + 10
    epochs = max((width_of(each.epochs) for each in shown), default=0.0) + 14
    notes = max((width_of(clipped(each.notes, _LONGEST), 12) for each in shown), default=0.0) + 22
    counts = max((width_of(each.counts, 11.5) for each in shown), default=0.0)
    parts = list(_lines(shown, lanes, colours))
    for index, each in enumerate(shown):
        x, y = _place(lanes, index)
        parts.append(f"<g><title>{escaped(each.details, 2000)}</title>")
        parts.append(_mark(each, x, y, colours[each.line]))
        parts.append(text(left, y + 4, each.epochs, bold=not each.folded, quiet=each.folded))
        if each.notes:
            parts.append(text(left + epochs, y + 4, each.notes, most=_LONGEST, quiet=each.folded))
        if each.counts:
            parts.append(text(left + epochs + notes, y + 4, each.counts, size=11.5, quiet=True))
        parts.append("</g>")
    height = 2 * _MARGIN + len(shown) * _ROW
    said = [empty] if not snapshots else [f"… and {count(cut, 'older row')}"] if cut else [more] if more else []
    for line in said:
        parts.append(text(left if shown else _MARGIN, height + 2, line, quiet=True))
        height += _ROW
    width = max(left + epochs + notes + counts + _MARGIN, 320.0)
    return document(width, height, title, parts, style)


def _targets(of: Snapshot, number: int) -> tuple[int, ...]:
    """A parent that is cut off keeps its line: it leads to the end of the drawing."""
    return () if of.parent is None else (min(of.parent, number),)


def _colours(shown: Sequence[Snapshot]) -> Mapping[str, str]:
    lines = dict.fromkeys(line for each in shown for line in (each.line, each.below))
    return {line: ACCENTS[number % len(ACCENTS)] for number, line in enumerate(lines)}


def _place(lanes: Mapping[int, int], index: int) -> tuple[float, float]:
    return _MARGIN + min(lanes[index], _MOST_LANES) * _LANE + _RADIUS, _MARGIN + index * _ROW + _ROW / 2


def _lines(shown: Sequence[Snapshot], lanes: Mapping[int, int], colours: Mapping[str, str]) -> Iterator[str]:
    for index, each in enumerate(shown):
        x, y = _place(lanes, index)
        look = f'fill="none" stroke="{colours[each.below]}" stroke-width="2.2" stroke-linecap="round"'
        if each.parent is not None and each.parent < len(shown):
            to_x, to_y = _place(lanes, each.parent)
            bend, middle = to_y - _ROW, to_y - _ROW / 2
            way = f"V{to_y:g}" if x == to_x else f"V{bend:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"
            yield f'<path d="M{x:g} {y:g}{way}" {look}/>'
        elif each.parent is not None or each.continues:
            end = _MARGIN + len(shown) * _ROW + 4 if each.parent is not None else y + _ROW / 2 + 2
            yield f'<path d="M{x:g} {y:g}V{end:g}" {look} stroke-dasharray="1 5"/>'


def _mark(of: Snapshot, x: float, y: float, colour: str) -> str:
    """A disc; for a run, a pale one; for a snapshot that is not committed, a ring."""
    place = f'cx="{x:g}" cy="{y:g}" r="{_RADIUS:g}" stroke="{colour}"'
    if of.folded:
        return f'<circle {place} fill="{colour}" fill-opacity="0.3" stroke-width="1.4"/>'
    inside = "none" if of.hollow else colour
    return f'<circle {place} fill="{inside}" stroke-width="2"/>'
