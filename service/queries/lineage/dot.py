"""A lineage in the language of Graphviz."""

from __future__ import annotations

from epochal.contracts.identity import EpochKey
from epochal.service.queries.lineage.words import details, label, names, title
from epochal.wire.lineage import LineageAnswer, LineageNode


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
    """A string of the language; what people wrote cannot end it, and control characters are left out."""
    clean = "".join(sign for sign in text if sign == "\n" or sign.isprintable())
    escaped = clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
