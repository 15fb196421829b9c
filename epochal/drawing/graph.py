"""SVG drawing of a graph of sources, operators and sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from epochal.drawing.lanes import topological
from epochal.drawing.layered import Box, Line, Size, place
from epochal.drawing.svg import ACCENTS, document, text, width_of
from epochal.drawing.texts import clipped, count, escaped

MOST_NODES = 120
"""Maximum number of nodes; further ones are counted only."""
_MARGIN, _PADDING, _NARROWEST, _WIDEST, _LONGEST = 8.0, 13.0, 110.0, 250.0, 34
_COLOURS = {"source": ACCENTS[2], "operator": ACCENTS[0], "sink": ACCENTS[3], "plain": ""}


@dataclass(frozen=True)
class Node:
    """A node. ``inputs``: indexes of nodes; ``kind``: its first line; ``facts``: lines with figures below the name;
    ``hint``: shown by the pointer; ``hot``: marked."""

    name: str
    shape: Literal["source", "operator", "sink", "plain"]
    kind: str
    inputs: tuple[int, ...] = ()
    facts: tuple[str, ...] = ()
    hint: str = ""
    hot: bool = False


def graph_svg(title: str, nodes: Sequence[Node]) -> str:
    """The drawing, from left to right. Names are cut to 34 characters, large graphs to ``MOST_NODES`` nodes."""
    order = topological([node.inputs for node in nodes])[:MOST_NODES]
    place_of = {index: position for position, index in enumerate(order)}
    shown = [nodes[index] for index in order]
    inputs = [tuple(place_of[each] for each in node.inputs if each in place_of) for node in shown]
    at = place([_size(node, found) for node, found in zip(shown, inputs, strict=True)])
    parts = [_line(line) for line in at.lines]
    parts += [_node(node, box) for node, box in zip(shown, at.boxes, strict=True)]
    height = at.height + 2 * _MARGIN
    drawn = [f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">', *parts, "</g>"]
    width = max(at.width + 2 * _MARGIN, 240)
    if not nodes:
        drawn.append(text(_MARGIN, height + 12, "The graph has no nodes.", quiet=True))
        height += 24
    if len(nodes) > len(order):
        more = f"… and {count(len(nodes) - len(order), 'node')} more"
        drawn.append(text(_MARGIN, height + 12, more, quiet=True))
        height += 24
    return document(width, height, title, drawn)


def _size(node: Node, inputs: tuple[int, ...]) -> Size:
    if node.shape == "plain":
        width = width_of(clipped(node.name, _LONGEST)) + 2 * _PADDING
        return Size(min(_WIDEST, max(60.0, width)), 28.0, inputs)
    lines = [clipped(node.name, _LONGEST) + "  ", *(clipped(each, _LONGEST) for each in (node.kind, *node.facts))]
    width = max(width_of(line, 13 if index == 0 else 11.5) for index, line in enumerate(lines)) + 2 * _PADDING
    return Size(min(_WIDEST, max(_NARROWEST, width)), 46.0 + 16.0 * len(node.facts), inputs)


def _node(node: Node, box: Box) -> str:
    top = box.centre - box.height / 2
    place = f'x="{box.left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    hint = _hint(node)
    if node.shape == "plain":
        label = text(box.left + box.width / 2, box.centre + 4, node.name, most=_LONGEST, anchor="middle")
        look = 'fill="currentColor" fill-opacity="0.04" stroke="currentColor" stroke-opacity="0.35"'
        return f'<g>{hint}<rect {place} rx="14" {look}/>{label}</g>'
    colour = ACCENTS[1] if node.hot else _COLOURS[node.shape]
    look = f'fill="{colour}" fill-opacity="0.1" stroke="{colour}" stroke-width="{2.2 if node.hot else 1.4}"'
    x = box.left + _PADDING
    lines = [
        text(x, top + 18, node.kind, most=_LONGEST, size=11.5, quiet=True),
        text(x, top + 36, node.name, most=_LONGEST, size=13, bold=True),
        *(text(x, top + 53 + 16 * index, each, most=_LONGEST, size=11.5) for index, each in enumerate(node.facts)),
    ]
    return f'<g>{hint}<rect {place} rx="8" {look}/>{"".join(lines)}</g>'


def _hint(node: Node) -> str:
    """The title element that a pointer shows: the name, and the hint."""
    return f"<title>{escaped(node.name, 300)}{escaped(f': {node.hint}', 1000) if node.hint else ''}</title>"


def _line(line: Line) -> str:
    """A path with an arrow head. It is curved between layers only, where there are no nodes."""
    (x, y), *_ = line.points
    path = f"M{x:.1f} {y:.1f}"
    pairs = list(zip(line.points[::2], line.points[1::2], strict=True))
    for (left, y), (right, _), following in zip(*zip(*pairs, strict=True), [*pairs[1:], None], strict=True):
        end = right - 6 if following is None else right
        path += f"H{max(left, end):.1f}"
        if following is not None:
            (next_left, next_y), _ = following
            middle = (right + next_left) / 2
            path += f"C{middle:.1f} {y:.1f} {middle:.1f} {next_y:.1f} {next_left:.1f} {next_y:.1f}"
    x, y = line.points[-1]
    return (
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.45" stroke-width="1.4"/>'
        f'<path d="M{x - 1:.1f} {y:.1f}l-8 -4v8z" fill-opacity="0.6"/>'
    )
