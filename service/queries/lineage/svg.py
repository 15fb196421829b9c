"""A lineage as a picture: a line per branch, newest above, what is to be said of each snapshot beside it.

Plain SVG without scripts, fonts or anything else from outside. All text is escaped; what it is too long for is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from epochal.contracts.identity import EpochKey
from epochal.service.queries.lineage.lanes import Lanes, lanes_of
from epochal.service.queries.lineage.words import details, label, names, title
from epochal.wire.lineage import LineageAnswer, LineageEdge, LineageNode

_ROW, _LANE, _MARGIN, _RADIUS = 28, 22, 20, 6
_TEXT_WIDTH, _LONGEST_TEXT = 640, 110
_COLOURS = ("#2563eb", "#c026d3", "#059669", "#d97706", "#dc2626", "#0891b2", "#7c3aed", "#4d7c0f")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2937}.epoch{font-weight:600}.quiet{fill:#6b7280}"
    "path{fill:none;stroke-width:2.5;stroke-linecap:round}.run{stroke-dasharray:1 5}"
    "@media(prefers-color-scheme:dark){text{fill:#e5e7eb}.quiet{fill:#9ca3af}}"
)


def as_svg(lineage: LineageAnswer) -> str:
    """A standalone document."""
    lanes = lanes_of(lineage)
    width = 2 * _MARGIN + lanes.width * _LANE + _TEXT_WIDTH
    height = 2 * _MARGIN + max(1, len(lineage.nodes)) * _ROW
    size = f'width="{width}" height="{height}"'
    heading = f"Lineage of {lineage.application}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
        f"<title>{_text(heading)}</title>",
        f"<style>{_STYLE}</style>",
        *_lines(lineage, lanes, height),
        *_snapshots(lineage, lanes),
    ]
    if not lineage.nodes:
        nothing = f"{lineage.application} has no snapshots yet."
        parts.append(f'<text class="quiet" x="{_MARGIN}" y="{_MARGIN + 14}">{_text(nothing)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _lines(lineage: LineageAnswer, lanes: Lanes, height: int) -> Iterator[str]:
    for edge in lineage.edges:
        x, y = _place(lanes, edge.target)
        colour = _colour(lanes, edge.target)
        if edge.source not in lanes.rows:
            yield f'<path class="run" stroke="{colour}" d="M{x} {y}V{height - 4}"/>'
            continue
        to_x, to_y = _place(lanes, edge.source)
        if x == to_x:
            yield f'<path stroke="{colour}" d="M{x} {y}V{to_y}"/>'
        else:
            bend = to_y - _ROW
            curve = f"M{x} {y}V{bend}C{x} {bend + _ROW // 2} {to_x} {bend + _ROW // 2} {to_x} {to_y}"
            yield f'<path stroke="{colour}" d="{curve}"/>'


def _snapshots(lineage: LineageAnswer, lanes: Lanes) -> Iterator[str]:
    edges = {edge.target: edge for edge in lineage.edges}
    left = _MARGIN + lanes.width * _LANE + 8
    for node in lineage.nodes:
        key = EpochKey(node.branch, node.epoch)
        x, y = _place(lanes, key)
        colour = _colour(lanes, key)
        inside = "#ffffff" if node.epochs > 1 or node.state != "committed" else colour
        yield "<g>"
        yield f"<title>{_text(details(node))}</title>"
        yield f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="{inside}" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{left}" y="{y + 4}">{_said(node, edges.get(key), key == lineage.head)}</text>'
        yield "</g>"


def _said(node: LineageNode, edge: LineageEdge | None, head: bool) -> str:
    notes = [node.application] if head else []
    notes += names(node)
    notes += [said] if edge is not None and (said := label(edge)) is not None else []
    css = "quiet" if node.epochs > 1 else "epoch"
    rest = " · ".join(notes)
    shown = rest if len(rest) <= _LONGEST_TEXT else rest[: _LONGEST_TEXT - 1] + "…"
    return f'<tspan class="{css}">{_text(title(node))}</tspan> <tspan dx="8">{_text(shown)}</tspan>'


def _place(lanes: Lanes, key: EpochKey) -> tuple[int, int]:
    return _MARGIN + lanes.lane[key.branch] * _LANE + _RADIUS, _MARGIN + lanes.rows[key] * _ROW + _ROW // 2


def _colour(lanes: Lanes, key: EpochKey) -> str:
    return _COLOURS[lanes.lane[key.branch] % len(_COLOURS)]


def _text(text: str) -> str:
    """As the content of an element. XML has no control characters, not even escaped; nor lone surrogates."""
    clean = "".join(sign for sign in text if sign == "\n" or (sign >= " " and not "\ud800" <= sign <= "\udfff"))
    return escape(clean.replace("\ufffe", "").replace("\uffff", ""))
