"""Checks that the stateless verbs of streams compute row by row.

A verb gets the rows of one epoch. The result of an aggregate, a window function or a limit over these rows would depend
on epoch boundaries. Spark's analysed plan contains such computations, whether they come from SQL text, from columns or
from an author's function over DataFrames.

The plan is parsed from the output of ``explain(extended=True)``. Above the rows of a stream, only nodes that are known
to compute row by row are allowed, so that new nodes of later versions of Spark are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from epochal.declarations.determinism import explained_plan
from epochal.declarations.references import is_star, renamed_column
from epochal.declarations.spark_errors import STREAM, at
from epochal.errors import PipelineError
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    Graph,
    Node,
    NodeId,
    OperatorNode,
    SinkNode,
    StaticNode,
    TransformNode,
    inputs,
    place,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_END: Final = "_epochal_end"
"""The alias of the explained frame, which marks the root of the tree."""
_NODE = re.compile(r"((?:[ :] {2})*)[:+]- ['!~]?([A-Za-z]\w*)(.*)")
_CTE = re.compile(r"CTERelation(?:Def|Ref) (\d+)")

ROW_WISE: Final = frozenset(
    {
        "Project", "Filter", "SubqueryAlias", "View", "Generate", "Expand", "Sort", "Union", "Join", "LateralJoin",
        "AsOfJoin", "NearestByJoin", "MapInArrow", "MapInPandas", "PythonMapInArrow", "ScriptTransformation",
        "Repartition", "RepartitionByExpression", "RepartitionById", "RebalancePartitions", "ResolvedHint",
        "UnresolvedHint", "CollectMetrics", "Sample", "WithCTE", "CTERelationDef",
    }
)  # fmt: skip
"""Nodes that can read rows of a stream. Joins and unions have further checks. A sample is random;
:mod:`epochal.declarations.determinism` refuses it before operators."""
_JOINS: Final = frozenset({"Join", "LateralJoin", "AsOfJoin", "NearestByJoin"})
_LEFT: Final = frozenset({"LeftOuter", "LeftSemi", "LeftAnti"})
_KIND = re.compile(r"\b(?:Left(?:Outer|Semi|Anti)|RightOuter|FullOuter)\b(?!#)")

_AGGREGATE = ("an aggregate", "key_by(..).aggregate(..), over a constant column for an aggregate of the whole stream")
_FIRST_ROWS = ("a limit", "top(..), which keeps the first rows of each key, or of each window")
_DUPLICATES = ("the removal of duplicates", "drop_duplicates(..), or key_by(..).distinct(..)")
_SETS = ("a comparison of sets of rows", "join(..) of the two streams, or with how='left_anti' with a table")
_GROUPS = ("a function over groups of rows", "key_by(..).process(..) or key_by(..).process_batch(..)")
_ADVICE: Final[Mapping[str, tuple[str, str]]] = {
    "Aggregate": _AGGREGATE,
    "AggregateInPandas": _AGGREGATE,
    "Pivot": _AGGREGATE,
    "Window": ("a window function", "key_by(..).top(..) for ranks, key_by(..).process(..) with state for others"),
    "WindowGroupLimit": _FIRST_ROWS,
    "Deduplicate": _DUPLICATES,
    "DeduplicateWithinWatermark": _DUPLICATES,
    "Distinct": _DUPLICATES,
    "GlobalLimit": _FIRST_ROWS,
    "LocalLimit": _FIRST_ROWS,
    "LimitAll": _FIRST_ROWS,
    "Tail": _FIRST_ROWS,
    "Offset": ("an offset", "top(..), which gives each row its rank"),
    "Intersect": _SETS,
    "Except": _SETS,
    "AttachDistributedSequence": ("a numbering of rows", "key_by(..).process(..), with the next number in its state"),
}
_JOIN = ("a join of the stream with rows of the same epoch", "join(other, on=.., within=..), or join(other.latest(..))")
_SUBQUERY = ("a subquery that reads the stream", "key_by(..).aggregate(..) and join(..) with its output")
_REPEATED = (
    "a join that keeps rows of a table, which would be repeated in every epoch,",
    "join(table, on=.., how='left'), which keeps the rows of the stream",
)
_UNITED = ("a union with rows of a table, which would be repeated in every epoch,", "join(table, on=..)")
_ABSENT = (
    "a function whose DataFrame Spark does not compute from the stream's rows",
    "the DataFrame argument of the function, or map_arrow(..) or map_pandas(..) for Python code",
)


@dataclass(frozen=True, eq=False)
class PlanNode:
    """A node of a printed plan. ``subqueries``: the plans in its expressions."""

    name: str
    arguments: str
    children: list[PlanNode] = field(default_factory=list)
    subqueries: list[PlanNode] = field(default_factory=list)


def as_stream(frame: DataFrame) -> DataFrame:
    """Mark the frame in plans as rows of a stream. Checks stop there."""
    return frame.alias(STREAM)


def with_marked_streams(graph: Graph) -> Graph:
    """The graph in which the output of verbs with ``per_epoch=True`` is marked as rows of a stream."""
    return replace(graph, nodes=tuple(map(_marked, graph.nodes)))


def check_row_wise(graph: Graph, frames: Mapping[NodeId, DataFrame]) -> None:
    """Raises ``PipelineError`` that names the verb, and the operator to use instead.

    ``frames``: frames of the nodes of :func:`with_marked_streams`; sources, operators and sides are marked as streams.
    """
    tables = _tables(graph)
    for id in dict.fromkeys(id for node in graph.nodes if _is_end(node) for id in inputs(node)):
        verbs = [node for node in _verbs_above(graph, id) if node.id not in tables and _may_compute_over_rows(node)]
        if verbs and fault(frames[id]) is not None:
            for verb in verbs:
                with at(place(graph, verb.id)):
                    found = fault(frames[verb.id])
                    if found is not None:
                        raise PipelineError(_message(*found))


def fault(frame: DataFrame) -> tuple[str, str] | None:
    """The first computation over several rows of a stream, and its replacement; ``None`` if there is none."""
    return fault_of_plan(explained_plan(frame.alias(_END).limit(0)))  # with a limit of 0 the optimiser has little to do


def fault_of_plan(plan: str) -> tuple[str, str] | None:
    """Like :func:`fault`, for the output of ``explain(extended=True)``."""
    root = parsed(plan)
    search = _Search({match[1]: node for node in _all(root) if (match := _CTE.match(_shown(node)))})
    return next(search.faults(root), None if search.reads(root) else _ABSENT)


def parsed(plan: str) -> PlanNode:
    """The tree of the analysed plan below the alias :data:`_END`."""
    analysed = plan.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
    path: list[PlanNode | None] = []
    base = 0
    for line in analysed.splitlines():
        match = _NODE.fullmatch(line)
        if match is None:
            continue  # a line break within an expression
        depth, node = len(match[1]) // 3 + 1, PlanNode(match[2], match[3])
        if not path:
            if _shown(node) == f"SubqueryAlias {_END}":
                path, base = [node], depth
            continue
        above = path[depth - base - 1] if 0 < depth - base <= len(path) else None
        if above is not None:
            above.children.append(node)
        elif depth - base == len(path) + 1 and path[-1] is not None:  # a subquery is indented by two levels
            path[-1].subqueries.append(node)
        else:
            continue
        path = [*path[: depth - base], *[None] * (depth - base - len(path)), node]
    if not path or path[0] is None:
        raise PipelineError(f"Spark prints the plan in an unknown form:\n{plan}")
    return path[0]


class _Search:
    """Search for computations over several rows of a stream. ``shared``: common table expressions by number."""

    def __init__(self, shared: Mapping[str, PlanNode]) -> None:
        self._shared = shared
        self._known: dict[int, bool] = {}

    def reads(self, node: PlanNode) -> bool:
        """Return whether the node reads rows of a stream."""
        if id(node) not in self._known:
            self._known[id(node)] = False  # stops the recursion of recursive expressions
            self._known[id(node)] = self._is_stream(node) or any(map(self.reads, self._below(node)))
        return self._known[id(node)]

    def faults(self, node: PlanNode) -> Iterator[tuple[str, str]]:
        """Yield faults, those nearest to the stream first."""
        if self._is_stream(node) or not self.reads(node):
            return
        for below in (*node.children, *node.subqueries):
            yield from self.faults(below)
        of_children = [self.reads(child) for child in node.children]
        if node.name in _ADVICE:
            yield _ADVICE[node.name]
        elif node.name == "LateralJoin" and any(map(self.reads, node.subqueries)):
            yield _JOIN
        elif any(map(self.reads, node.subqueries)):
            yield _SUBQUERY
        elif node.name in _JOINS and of_children != [True]:
            yield from self._joined(node, of_children)
        elif node.name == "Union" and not all(of_children):
            yield _UNITED
        elif node.name.startswith("FlatMap"):
            yield _GROUPS
        elif node.name not in ROW_WISE and not node.name.startswith("CTERelation"):
            yield f"a computation that Spark calls {node.name}", "key_by(..) and an operator with state"

    def _joined(self, node: PlanNode, of_children: Sequence[bool]) -> Iterator[tuple[str, str]]:
        kind = match[0] if (match := _KIND.search(node.arguments)) else "Inner"
        if all(of_children):
            yield _JOIN
        elif kind == "FullOuter" or (kind == "RightOuter" and of_children[0]) or (kind in _LEFT and of_children[1]):
            yield _REPEATED

    def _below(self, node: PlanNode) -> Iterator[PlanNode]:
        yield from node.children
        yield from node.subqueries
        if node.name == "CTERelationRef" and (match := _CTE.match(_shown(node))) and match[1] in self._shared:
            yield self._shared[match[1]]

    def _is_stream(self, node: PlanNode) -> bool:
        return _shown(node) == f"SubqueryAlias {STREAM}"


def _all(node: PlanNode) -> Iterator[PlanNode]:
    if node.name == "CTERelationDef":
        yield node
    for below in (*node.children, *node.subqueries):
        yield from _all(below)


def _shown(node: PlanNode) -> str:
    return node.name + node.arguments


def _message(what: str, instead: str) -> str:
    return (
        f"{what} gets only the rows of one epoch, so that its result depends on epoch boundaries. Use {instead}. "
        "To compute over the rows of each epoch separately, use transform(function, per_epoch=True)."
    )


def _is_end(node: Node) -> bool:
    return isinstance(node, OperatorNode | SinkNode | CloseNode)


def _tables(graph: Graph) -> frozenset[NodeId]:
    """Tables, and relations that are computed from tables only."""
    found: set[NodeId] = set()
    for node in graph.nodes:
        if isinstance(node, StaticNode) or (isinstance(node, TransformNode) and found.issuperset(node.inputs)):
            found.add(node.id)
    return frozenset(found)


def _verbs_above(graph: Graph, id: NodeId) -> list[TransformNode]:
    """The verbs between a node and the origin of its rows, in order."""
    found = {id}
    for node in reversed(graph.nodes[: id + 1]):
        if node.id in found and isinstance(node, TransformNode | EventTimeNode):
            found.update(inputs(node))
    verbs = (graph.node(id) for id in sorted(found))
    return [node for node in verbs if isinstance(node, TransformNode)]


def _may_compute_over_rows(node: TransformNode) -> bool:
    """A fast check without Spark: a verb that renames or drops columns or joins a table computes row by row."""
    plain = all(is_star(column) or renamed_column(column) is not None for column in node.expressions)
    return node.by_author or not plain


def _marked(node: Node) -> Node:
    if isinstance(node, TransformNode) and node.per_epoch:
        return replace(node, function=partial(_per_epoch, node.function))
    return node


def _per_epoch(function: Callable[..., DataFrame], *frames: DataFrame) -> DataFrame:
    return as_stream(function(*frames))
