"""Figures of a graph's nodes, for drawings in terminals and notebooks: rates, busy time, state, lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochal.drawing import texts
from epochal.wire.applications import LoadAnswer
from epochal.wire.state import StateTableAnswer
from epochal.wire.versions import GraphAnswer, GraphNodeAnswer

SIDES = ("transform", "watermark", "side", "feedback", "close")
"""Types of nodes without figures, besides sources, tables and sinks."""
ENDS = ("source", "static", "sink")


@dataclass(frozen=True)
class Figures:
    """Figures of a node. ``rate``: rows per second; ``busy``: share of the time of its subtasks; ``state``: size of its
    state tables; ``warnings``: lag, a blocked sink, skew, stragglers. ``slowest``: the operator with the largest
    share."""

    rate: float | None = None
    busy: float | None = None
    state: str = ""
    warnings: tuple[str, ...] = ()
    slowest: bool = False


def figures(graph: GraphAnswer, load: LoadAnswer | None, tables: Sequence[StateTableAnswer]) -> Mapping[int, Figures]:
    """Figures by the id of the node. ``load``: ``None`` if the application does not run."""
    busy = {node.id: share for node in graph.nodes if (share := _busy(node, load)) is not None}
    most = max(busy, key=lambda id: busy[id], default=None) if len(busy) > 1 else None
    return {
        node.id: Figures(
            rate=_rate(node, load),
            busy=busy.get(node.id),
            state=_state(node, load, tables),
            warnings=tuple(_warnings(node, load)),
            slowest=node.id == most,
        )
        for node in graph.nodes
    }


def described(node: GraphNodeAnswer) -> str:
    """``source generator``, ``aggregate by customer``, ``transform``."""
    kind = str(node.description.get("kind", "")) if node.type in ENDS else ""
    keys = node.description.get("keys") if node.type not in (*ENDS, *SIDES) else None
    by = f"by {', '.join(map(str, keys))}" if isinstance(keys, list | tuple) and keys else ""
    return " ".join(filter(None, ("table" if node.type == "static" else node.type.replace("_", " "), kind, by)))


def _rate(node: GraphNodeAnswer, load: LoadAnswer | None) -> float | None:
    if load is None or load.seconds <= 0:
        return None
    if node.type == "source":
        found = load.sources.get(node.name)
        rows = None if found is None else found.rows
    elif node.type == "sink":
        written = load.sinks.get(node.name)
        rows = None if written is None else written.rows
    elif node.type in (*SIDES, *ENDS):
        return None
    else:
        operator = load.operators.get(node.name)
        rows = None if operator is None else operator.rows
    return None if rows is None else rows / load.seconds


def _busy(node: GraphNodeAnswer, load: LoadAnswer | None) -> float | None:
    if load is None or load.seconds <= 0 or node.type in (*SIDES, *ENDS):
        return None
    operator = load.operators.get(node.name)
    return None if operator is None else operator.busy_seconds / load.seconds / max(1, operator.subtasks)


def _state(node: GraphNodeAnswer, load: LoadAnswer | None, tables: Sequence[StateTableAnswer]) -> str:
    if node.type in (*SIDES, *ENDS):
        return ""
    own = [table for table in tables if table.operator == node.name]
    known = [table.rows for table in own if table.rows is not None]
    sizes = [load.tables[table.table].bytes for table in own if load is not None and table.table in load.tables]
    parts = [f"{texts.short(sum(known))} {'row' if sum(known) == 1 else 'rows'}"] if known else []
    return ", ".join([*parts, *([texts.size(sum(sizes))] if sizes else [])])


def _warnings(node: GraphNodeAnswer, load: LoadAnswer | None) -> Iterator[str]:
    if load is None:
        return
    if node.type == "source" and (source := load.sources.get(node.name)) is not None:
        if not source.reachable:
            yield "not reachable"
        elif source.seconds:
            yield f"{texts.duration(source.seconds)} behind"
    elif node.type == "sink" and (sink := load.sinks.get(node.name)) is not None:
        if sink.blocked_since is not None:
            yield f"blocked since {texts.moment(sink.blocked_since)}"
    elif node.type not in (*SIDES, *ENDS) and (operator := load.operators.get(node.name)) is not None:
        if operator.skewed:
            yield "skewed"
        if operator.stragglers:
            yield texts.count(len(operator.stragglers), "straggler")
