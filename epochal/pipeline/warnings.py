"""What an author should know of a valid pipeline: what is probably not meant, and what costs more than it looks."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.pipeline.graph import Graph, OperatorNode


def notes_of(graph: Graph) -> tuple[str, ...]:
    """Of each operator whose state grows with the keys that come, one text: what grows, and what would bound it."""
    grows = ((node, node.operator.grows) for node in graph.operators)
    return tuple(f"Operator {node.name!r} {text}" for node, text in grows if text is not None)


def warnings_of(graph: Graph) -> tuple[str, ...]:
    """One text for each: where, what, and what to do."""
    # A control plane reads descriptions, and has no graphs: it loads no operators for them.
    from epochal.pipeline.loops import unread_dead_letters

    of_operators = (text for node in graph.operators for text in (*node.operator.warnings(), *_unread(graph, node)))
    return (*of_operators, *(_left_out(name) for name in unread_dead_letters(graph)))


def _left_out(loop: str) -> str:
    return (
        f"Loop {loop!r}: nobody reads its dead letters, so that what has gone round more often than max_hops is left "
        "out. Write dead_letters() somewhere, or leave max_hops out."
    )


def _unread(graph: Graph, node: OperatorNode) -> Iterator[str]:
    read = {reader.side for reader in graph.sides(node.id)}
    for side in node.operator.sides:
        if side not in read:
            yield (
                f"Operator {node.name!r}: nobody reads its side output {side!r}, whose rows are left out. Read it, "
                f"side({side!r}), or remove it from the class."
            )
