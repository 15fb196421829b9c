"""The picture of a lineage: its entries, with what a reader looks for beside them."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.contracts.identity import EpochKey
from epochal.drawing.lineage import Snapshot, lineage_svg
from epochal.drawing.texts import count, short
from epochal.wire.lineage import LineageAnswer, LineageEdge
from epochal.wire.lineage_entries import Entry, entries
from epochal.wire.lineage_texts import details, label, names, title


def lineage_picture(lineage: LineageAnswer, style: str = "") -> str:
    """The SVG drawing. Runs of plain epochs are folded. ``style``: a style sheet, for standalone files."""
    edges = {edge.target: edge for edge in lineage.edges}
    arranged = entries(lineage)
    tips = _tips(lineage, arranged)
    return lineage_svg(
        f"Lineage of {lineage.application}",
        [_snapshot(entry, edges, tips) for entry in arranged],
        empty=f"{lineage.application} has no snapshots yet.",
        style=style,
        more="" if lineage.next_cursor is None else "Older snapshots are on further pages.",
    )


def _snapshot(entry: Entry, edges: dict[EpochKey, LineageEdge], tips: dict[EpochKey, str]) -> Snapshot:
    node = entry.newest
    rows = sum(each.counts.rows_in for each in entry.nodes)
    changed = sum(each.counts.state_rows for each in entry.nodes)
    notes = [f"{count(entry.epochs, 'epoch')}"] if entry.folded else [*_notes(entry, edges, tips)]
    return Snapshot(
        epochs=f"{entry.first}\N{EN DASH}{node.epoch}" if entry.folded else title(node),
        line=node.branch,
        below=entry.oldest.branch,
        parent=entry.parent,
        notes=" · ".join(notes),
        counts=f"{short(rows)} {'row' if rows == 1 else 'rows'} in, {short(changed)} changed",
        details=details(node),
        folded=entry.folded,
        hollow=node.state != "committed",
        continues=entry.parent is None and entry.oldest.key in edges,
    )


def _notes(entry: Entry, edges: dict[EpochKey, LineageEdge], tips: dict[EpochKey, str]) -> Iterator[str]:
    node = entry.newest
    if node.key in tips:
        yield tips[node.key]
    yield from names(node)
    edge = edges.get(node.key)
    if edge is not None and (said := label(edge)) is not None:
        yield said
    elif edge is None and any(change.kind == "start" for change in node.changes):
        yield "start"
    if node.collected:
        yield "files deleted"


def _tips(lineage: LineageAnswer, arranged: list[Entry]) -> dict[EpochKey, str]:
    """The latest snapshot of each application, with the application's name."""
    tips: dict[str, EpochKey] = {} if lineage.head is None else {lineage.application: lineage.head}
    for entry in arranged:
        tips.setdefault(entry.newest.application, entry.newest.key)
    return {key: application for application, key in tips.items()}
