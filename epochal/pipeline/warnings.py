"""What an author should know of a valid pipeline: what is probably not meant, and what costs more than it looks."""

from __future__ import annotations

from epochal.pipeline.graph import Graph


def warnings_of(graph: Graph) -> tuple[str, ...]:
    """One text for each: where, what, and what to do."""
    return tuple(text for node in graph.operators for text in node.operator.warnings())
