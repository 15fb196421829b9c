"""Chains of stateless verbs as one SQL statement each, so that an epoch evaluates a chain with a few calls.

Evaluated verb by verb, each verb is analysed separately, with a call into the JVM for each column. The first epoch of
an attempt evaluates a chain by its verbs and by its statement, and Spark compares the plans. If they differ, or if a
verb cannot be written as SQL, the attempt evaluates the chain verb by verb.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from epochal.contracts.source import PARTITION
from epochal.declarations.expressions import Expression
from epochal.declarations.spark_errors import without_query_log
from epochal.declarations.sql_text import sql_text
from epochal.pipeline import verbs
from epochal.pipeline.graph import Graph, NodeId, TransformNode
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEAST_VERBS: Final = 4
"""The minimum length of a chain: for shorter chains the view that a statement reads costs more than it saves."""


@dataclass(frozen=True)
class Chain:
    """Verbs that each are the only reader of the previous verb. ``input``: the input of the first verb."""

    input: NodeId
    nodes: tuple[TransformNode, ...]

    @property
    def last(self) -> TransformNode:
        return self.nodes[-1]


def chains(graph: Graph, needed: Collection[NodeId], least: int = LEAST_VERBS) -> tuple[Chain, ...]:
    """The longest chains of at least ``least`` verbs of ``needed`` that can be written as SQL."""
    found: dict[NodeId, Chain] = {}
    for node in graph.nodes:
        if node.id not in needed or not isinstance(node, TransformNode) or _step_of(node) is None:
            continue
        (above,) = node.inputs
        readers = [reader for reader in graph.consumers(above) if reader in needed]
        before = found.pop(above) if above in found and len(readers) == 1 else Chain(above, ())
        found[node.id] = Chain(before.input, (*before.nodes, node))
    return tuple(chain for chain in found.values() if len(chain.nodes) >= least)


@dataclass
class Statements:
    """The statements of a graph's chains, for the epochs of one attempt in one session."""

    graph: Graph
    needed: Collection[NodeId]
    """The nodes that an epoch evaluates."""
    _texts: dict[NodeId, str] | None = None
    """Statements by the last node of their chain; ``None`` before the first epoch."""
    _views: str = field(default_factory=lambda: f"_epochal_{uuid.uuid4().hex}")

    @cached_property
    def chains(self) -> dict[NodeId, Chain]:
        """The chains by their last nodes."""
        return {chain.last.id: chain for chain in chains(self.graph, self.needed)}

    @property
    def known(self) -> Mapping[NodeId, Chain]:
        """The chains that have a statement, by their last nodes."""
        return {last: self.chains[last] for last in self._texts or ()}

    def learn(self, frames: Mapping[NodeId, DataFrame], input: Callable[[Chain], DataFrame]) -> None:
        """Learn statements from the frames of an epoch that was evaluated by verbs. ``input``: the input of a chain."""
        if self._texts is None:
            self._texts = {}
            for last, chain in self.chains.items():
                text = self._written(chain, [input(chain), *(frames[verb.id] for verb in chain.nodes[:-1])])
                frame = None if text is None else self._frame(chain, input(chain), text)
                if text is not None and frame is not None and _same(frame, frames[last]):
                    self._texts[last] = text

    def frame(self, chain: Chain, input: DataFrame) -> DataFrame | None:
        """The chain over ``input``; ``None`` on failure: its verbs then report the error."""
        return self._frame(chain, input, (self._texts or {})[chain.last.id])

    def _frame(self, chain: Chain, input: DataFrame, text: str) -> DataFrame | None:
        from pyspark.errors import PySparkException

        try:
            with without_query_log():
                input.createOrReplaceTempView(self._view(chain))
                return input.sparkSession.sql(text)
        except PySparkException:
            return None

    def _written(self, chain: Chain, inputs: Sequence[DataFrame]) -> str | None:
        """The statement of a chain. ``inputs``: the input of each verb."""
        written = self._view(chain)
        for verb, input in zip(chain.nodes, inputs, strict=True):
            step = _step_of(verb)
            text = None if step is None else step(input.columns, written)
            if text is None:
                return None
            written = f"({text})"
        return f"SELECT * FROM {written}"

    def _view(self, chain: Chain) -> str:
        return f"{self._views}_{chain.last.id}"


def _same(one: DataFrame, other: DataFrame) -> bool:
    """Compare plans without Spark's metadata of columns, such as generated names."""
    columns = [[(field.name, field.dataType, field.nullable) for field in frame.schema] for frame in (one, other)]
    return columns[0] == columns[1] and one.sameSemantics(other)


Step = Callable[[Sequence[str], str], str | None]
"""Writes a verb as SQL, given its input columns and the text of its input; ``None`` if it cannot be written."""


def _step_of(node: TransformNode) -> Step | None:
    verb = node.function
    if not isinstance(verb, partial) or verb.func not in _STEPS or len(node.inputs) != 1:
        return None
    return partial(_STEPS[verb.func], *verb.args)


def _select(columns: tuple[Expression, ...], names: Sequence[str], rows: str) -> str | None:
    texts = [sql_text(column) for column in columns]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    carried = [PARTITION] if PARTITION in names and not any("*" in text for text in known) else []
    return f"SELECT {', '.join([*known, *carried])} FROM {rows}"


def _where(condition: Expression, names: Sequence[str], rows: str) -> str | None:
    text = sql_text(condition)
    return None if text is None else f"SELECT * FROM {rows} WHERE {text}"


def _with_columns(columns: Mapping[str, Expression], names: Sequence[str], rows: str) -> str | None:
    texts = {name: sql_text(column) for name, column in columns.items()}
    added = {name.casefold(): f"{text} AS {quoted(name)}" for name, text in texts.items() if text is not None}
    there = [name.casefold() for name in names]
    if len(added) < len(columns) or len(set(there)) < len(there):
        return None
    chosen = [added.pop(name.casefold(), quoted(name)) for name in names]
    return f"SELECT {', '.join([*chosen, *added.values()])} FROM {rows}"


def _drop(columns: tuple[str, ...], names: Sequence[str], rows: str) -> str | None:
    gone = {name.casefold() for name in columns}
    kept = [quoted(name) for name in names if name.casefold() not in gone]
    return f"SELECT {', '.join(kept)} FROM {rows}" if kept else None


_STEPS: Final[Mapping[Callable[..., Any], Callable[..., str | None]]] = {
    verbs.select: _select,
    verbs.where: _where,
    verbs.with_columns: _with_columns,
    verbs.drop: _drop,
}
