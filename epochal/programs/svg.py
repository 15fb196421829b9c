"""Drawings of a dataflow: SVG, in the style of figure 1 of the SDG paper, and dot, for Graphviz."""

from __future__ import annotations

from xml.sax.saxutils import escape

from epochal.programs.dataflow import Dataflow, Dispatch, Edge
from epochal.programs.layout import (
    LINE,
    Box,
    Layout,
    edge_text,
    element_text,
    entry_text,
    layout,
    task_text,
)

_STYLE = """text { font: 11px sans-serif; fill: #1f2933 } .name { font-weight: bold } .small { fill: #52606d }
.stage { fill: #f5f7fa; stroke: #cbd2d9 } .task { fill: #e3f2fd; stroke: #1976d2 }
.state { fill: #fff8e1; stroke: #f9a825 }
.entry { fill: #e8f5e9; stroke: #388e3c } .edge { fill: none; stroke: #3e4c59; stroke-width: 1.3 }
.access { fill: none; stroke: #f9a825; stroke-dasharray: 3 3 } .barrier { stroke-width: 2.6 }"""
_HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
    'markerUnits="userSpaceOnUse"><path d="M0 0 L8 4 L0 8 z" fill="#3e4c59"/></marker>'
)


def svg(dataflow: Dataflow) -> str:
    """The SVG picture. Grey boxes are operators; edges with a barrier are thicker."""
    at = layout(dataflow)
    size = f'width="{at.width:.0f}" height="{at.height:.0f}" viewBox="0 0 {at.width:.0f} {at.height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<title>{escape(dataflow.name)}</title><style>{_STYLE}</style><defs>{_HEAD}</defs>",
        f'<rect width="{at.width:.0f}" height="{at.height:.0f}" fill="white"/>',
        *(_rectangle(box, "stage") for box in at.stages),
        *_accesses(dataflow, at),
        *(_edge(dataflow, at, edge) for edge in dataflow.edges),
        *(
            _rectangle(at.entries[name], "entry") + _text(at.entries[name], entry_text(dataflow, name))
            for name in at.entries
        ),
        *(
            _rectangle(at.tasks[each.number], "task") + _text(at.tasks[each.number], task_text(each))
            for each in dataflow.tasks
        ),
        *(
            _cylinder(at.elements[name]) + _text(at.elements[name], element_text(dataflow, name), 6)
            for name in at.elements
        ),
        *(_label(at, edge) for edge in dataflow.edges),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def dot(dataflow: Dataflow) -> str:
    """The graph in the language of Graphviz."""
    parts = [
        f"digraph {_quoted(dataflow.name)} {{",
        "  rankdir=LR; node [fontname=sans fontsize=11]; edge [fontsize=9];",
    ]
    for name in dataflow.entries:
        parts.append(f"  {_quoted(name)} [shape=plaintext label={_lines(entry_text(dataflow, name))}];")
    for task in dataflow.tasks:
        parts.append(f"  {_quoted(task.id)} [shape=box style=rounded label={_lines(task_text(task))}];")
    for name in dataflow.elements:
        parts.append(f"  {_quoted(f'state {name}')} [shape=cylinder label={_lines(element_text(dataflow, name))}];")
    for edge in dataflow.edges:
        target = dataflow.tasks[edge.target]
        source = target.entry if edge.source is None else dataflow.tasks[edge.source].id
        parts.append(f"  {_quoted(source)} -> {_quoted(target.id)} [label={_lines(edge_text(edge))}];")
    for task in dataflow.tasks:
        if task.element is not None:
            state = _quoted(f"state {task.element}")
            parts.append(f"  {_quoted(task.id)} -> {state} [style=dashed arrowhead=none constraint=false];")
    return "\n".join([*parts, "}"]) + "\n"


def _rectangle(box: Box, kind: str) -> str:
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect class="{kind}" {place} rx="8"/>'


def _cylinder(box: Box) -> str:
    radius = box.width / 2
    arc = f"a {radius:.1f} 7 0 0"
    side = box.height - 14
    body = f"M {box.x:.1f} {box.y + 7:.1f} {arc} 1 {box.width:.1f} 0 v {side:.1f} {arc} 1 -{box.width:.1f} 0 z"
    rim = f"M {box.x:.1f} {box.y + 7:.1f} {arc} 0 {box.width:.1f} 0"
    return f'<path class="state" d="{body}"/><path class="state" fill-opacity="0" d="{rim}"/>'


def _text(box: Box, text: list[str], lower: float = 0) -> str:
    first = box.middle - (len(text) - 1) * LINE / 2 + 4 + lower
    middle = box.x + box.width / 2
    return "".join(
        f'<text x="{middle:.1f}" y="{first + number * LINE:.1f}" text-anchor="middle" '
        f'class="{"small" if number else "name"}">{escape(line)}</text>'
        for number, line in enumerate(text)
        if line
    )


def _accesses(dataflow: Dataflow, at: Layout) -> list[str]:
    """The lines from task elements along the side of the stage to the state element."""
    parts = []
    for stage in dataflow.stages:
        if stage.element is None:
            continue
        state = at.elements[stage.element]
        for number, task in enumerate(stage.tasks):
            box = at.tasks[task]
            side = box.x - 3 - 3 * (number % 4)
            way = f"M {box.x:.1f} {box.bottom - 8:.1f} H {side:.1f} V {state.y + 14:.1f} H {state.x:.1f}"
            parts.append(f'<path class="access" d="{way}"/>')
    return parts


def _edge(dataflow: Dataflow, at: Layout, edge: Edge) -> str:
    target = at.tasks[edge.target]
    source = at.entries[dataflow.tasks[edge.target].entry] if edge.source is None else at.tasks[edge.source]
    x1, y1, x2, y2 = source.right, source.middle, target.x, target.middle
    bend = min(60.0, (x2 - x1) / 2)
    kind = "edge barrier" if edge.dispatch is Dispatch.GATHER else "edge"
    way = f"M {x1:.1f} {y1:.1f} C {x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="{kind}" d="{way}" marker-end="url(#head)"/>'


def _label(at: Layout, edge: Edge) -> str:
    x, y = at.labels[edge.number]
    return "".join(
        f'<text x="{x:.1f}" y="{y + number * LINE:.1f}" text-anchor="middle" class="small">{escape(line)}</text>'
        for number, line in enumerate(edge_text(edge))
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _lines(text: list[str]) -> str:
    return _quoted("\n".join(each for each in text if each)).replace("\n", "\\n")
