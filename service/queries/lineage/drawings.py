"""Drawings of a lineage. SVG: a line per branch, newest above, with labels beside each snapshot. dot: a graph for
Graphviz.

The SVG is plain, without scripts, fonts or external resources. All text is escaped, and cut to the available space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from epochal.contracts.identity import EpochKey
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
    """Escape the content of an element. XML allows no control characters, not even escaped, and no lone surrogates."""
    clean = "".join(sign for sign in text if sign == "\n" or (sign >= " " and not "\ud800" <= sign <= "\udfff"))
    return escape(clean.replace("\ufffe", "").replace("\uffff", ""))


@dataclass(frozen=True)
class Lanes:
    """``rows``: row of each node's key, counted from the newest. ``lane``: lane of each branch, from the left."""

    rows: Mapping[EpochKey, int]
    lane: Mapping[str, int]

    @property
    def width(self) -> int:
        return max(self.lane.values(), default=-1) + 1


def lanes_of(lineage: LineageAnswer) -> Lanes:
    """The branch of the head is on the left. A branch occupies its lane down to the snapshot at which it begins;
    then the lane is reused."""
    rows = {EpochKey(node.branch, node.epoch): row for row, node in enumerate(lineage.nodes)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for key, row in rows.items():
        first.setdefault(key.branch, row)
        last[key.branch] = row
    for edge in lineage.edges:
        # A parent on another page is below all rows of this one.
        last[edge.target.branch] = max(last[edge.target.branch], rows.get(edge.source, len(rows)))
    head = lineage.head.branch if lineage.head is not None else None
    order = sorted(first, key=lambda branch: (branch != head, first[branch]))
    return Lanes(rows, _assigned([(branch, first[branch], last[branch]) for branch in order]))


def _assigned(spans: Sequence[tuple[str, int, int]]) -> Mapping[str, int]:
    taken: list[list[tuple[int, int]]] = []
    lane: dict[str, int] = {}
    for branch, first, last in spans:
        free = (number for number, used in enumerate(taken) if all(last < start or first > end for start, end in used))
        number = next(free, len(taken))
        if number == len(taken):
            taken.append([])
        taken[number].append((first, last))
        lane[branch] = number
    return lane


def as_dot(lineage: LineageAnswer) -> str:
    """A directed graph, older below newer; the branches of one application have one colour."""
    applications = list(dict.fromkeys(node.application for node in lineage.nodes))
    lines = [
        f"digraph {_quoted(lineage.application)} {{",
        "  rankdir=BT;",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", colorscheme=pastel19];',
        '  edge [fontname="sans-serif"];',
    ]
    shown = set()
    for node in lineage.nodes:
        key = EpochKey(node.branch, node.epoch)
        shown.add(key)
        colour = applications.index(node.application) % 9 + 1
        dashed = ', style="rounded,filled,dashed"' if node.epochs > 1 else ""
        text = "\n".join([f"{node.application} {title(node)}", *names(node)])
        tooltip = details(node)
        bold = ", penwidth=2" if key == lineage.head else ""
        lines.append(
            f"  {_id(node)} [label={_quoted(text)}, tooltip={_quoted(tooltip)}, fillcolor={colour}{dashed}{bold}];"
        )
    for edge in lineage.edges:
        if edge.source in shown:
            said = label(edge)
            attributes = "" if said is None else f" [label={_quoted(said)}]"
            lines.append(f"  {_quoted(str(edge.source))} -> {_quoted(str(edge.target))}{attributes};")
    return "\n".join([*lines, "}", ""])


def _id(node: LineageNode) -> str:
    return _quoted(str(EpochKey(node.branch, node.epoch)))


def _quoted(text: str) -> str:
    """A quoted string of the language; text of people cannot end it, and control characters are removed."""
    clean = "".join(sign for sign in text if sign == "\n" or sign.isprintable())
    escaped = clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def title(node: LineageNode) -> str:
    """``12``, or for a run ``3-11 · 9 epochs``."""
    return str(node.epoch) if node.epochs == 1 else f"{node.first}\N{EN DASH}{node.epoch} · {node.epochs:,} epochs"


def names(node: LineageNode) -> list[str]:
    """Savepoints, tags, the pin, the message, and a state other than committed."""
    found = [f"savepoint {name}" for name in node.savepoints] + [f"tag {name}" for name in node.tags]
    found += ["pinned"] if node.pinned else []
    found += [node.state] if node.state != "committed" else []
    found += [f"“{node.message}”"] if node.message else []
    return found


def label(edge: LineageEdge) -> str | None:
    """``fork by admin: try it``; ``None`` for a plain epoch."""
    if edge.label is None:
        return None
    by = f" by {edge.label.by}" if edge.label.by else ""
    why = f": {edge.label.message}" if edge.label.message else ""
    return f"{edge.kind}{by}{why}"


def details(node: LineageNode) -> str:
    """All properties of a node, line by line."""
    lines = [
        f"{node.application}, branch {node.branch}",
        f"version {node.version}, {node.filename} {node.artifact[:8]}",
        f"{node.counts.rows_in:,} rows in, {node.counts.state_rows:,} changed",
    ]
    lines += [f"{name} = {value}" for name, value in node.parameters.items()]
    if node.committed_at is not None:
        lines.append(f"committed {node.committed_at:%Y-%m-%d %H:%M:%S} UTC")
    if node.collected:
        lines.append("its files were deleted")
    return "\n".join(lines)
