"""Texts of a lineage in drawings."""

from __future__ import annotations

from epochal.wire.lineage import LineageEdge, LineageNode


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
