"""Drawings of a lineage as files: SVG, and dot, a graph for Graphviz."""

from __future__ import annotations

from epochal.contracts.identity import EpochKey
from epochal.wire.lineage import LineageAnswer, LineageNode
from epochal.wire.lineage_drawing import lineage_picture
from epochal.wire.lineage_texts import details, label, names, title

# Unlike a drawing within a page, a file has no surrounding text with the colour of the theme.
_STYLE = "svg{color:#1f2937}@media(prefers-color-scheme:dark){svg{color:#e5e7eb}}"


def as_svg(lineage: LineageAnswer) -> str:
    """A standalone document."""
    return lineage_picture(lineage, _STYLE) + "\n"


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
