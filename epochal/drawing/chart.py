"""SVG charts of columns, one for each value in order, with the range and the unit beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from epochal.drawing.svg import ACCENTS, document, text
from epochal.drawing.texts import escaped

MOST_COLUMNS = 200
"""Maximum number of columns: the latest ones are shown."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BETWEEN = 330.0, 90.0, 66.0, 30.0, 34.0
_LINE = 'stroke="currentColor" stroke-opacity="0.3"'


@dataclass(frozen=True)
class Series:
    """Values, oldest first; ``None``: unknown. ``shown``: a value with its unit; ``hints``: shown by the pointer, one
    for each value; ``marked``: indexes of values in the colour of errors."""

    label: str
    values: Sequence[float | None]
    shown: Callable[[float], str]
    hints: Sequence[str] = ()
    marked: frozenset[int] = frozenset()


def charts_svg(title: str, series: Sequence[Series], first: str, last: str, empty: str = "No values.") -> str:
    """Charts beside each other. ``first``, ``last``: labels of the first and last column."""
    known = [each for each in series if any(value is not None for value in each.values)]
    if not known:
        return document(320, 34, title, [text(8, 22, empty, quiet=True)])
    parts = []
    for number, each in enumerate(known):
        parts.append(f'<g transform="translate({number * (_LEFT + _WIDTH + _BETWEEN):g} 0)">')
        parts += _chart(each, ACCENTS[number % len(ACCENTS)], first, last)
        parts.append("</g>")
    width = len(known) * (_LEFT + _WIDTH + _BETWEEN) - _BETWEEN + 8
    return document(width, _TOP + _HEIGHT + 26, title, parts)


def _chart(of: Series, colour: str, first: str, last: str) -> Iterator[str]:
    values = of.values[-MOST_COLUMNS:]
    hidden = len(of.values) - len(values)
    known = [value for value in values if value is not None]
    most = max([*known, 0.0]) or 1.0
    bottom = _TOP + _HEIGHT
    latest = f"latest {of.shown(known[-1])}"
    yield text(_LEFT, 16, of.label, bold=True)
    yield text(_LEFT + _WIDTH, 16, latest, size=11.5, quiet=True, anchor="end")
    yield text(_LEFT - 8, _TOP + 9, of.shown(max([*known, 0.0])), size=11, quiet=True, anchor="end")
    yield text(_LEFT - 8, bottom, of.shown(0.0), size=11, quiet=True, anchor="end")
    yield f'<path d="M{_LEFT:g} {bottom:g}h{_WIDTH:g}M{_LEFT:g} {_TOP:g}h{_WIDTH:g}" fill="none" {_LINE}/>'
    step = _WIDTH / max(len(values), 12)
    for index, value in enumerate(values):
        if value is None:
            continue
        height = max(1.0 if value > 0 else 0.0, value / most * _HEIGHT)
        hint = of.hints[index + hidden] if of.hints else of.shown(value)
        filled = ACCENTS[5] if index + hidden in of.marked else colour
        place = f'x="{_LEFT + index * step:.2f}" y="{bottom - height:.1f}" width="{max(0.6, step * 0.78):.2f}"'
        yield f'<rect {place} height="{height:.1f}" fill="{filled}"><title>{escaped(hint)}</title></rect>'
    yield text(_LEFT, bottom + 16, first, size=11, quiet=True)
    yield text(
        _LEFT + min(1.0, len(values) / 12) * _WIDTH,
        bottom + 16,
        last if len(values) > 1 else "",
        size=11,
        quiet=True,
        anchor="end",
    )
