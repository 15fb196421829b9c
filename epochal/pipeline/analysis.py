"""Analysis: everything that can be found wrong with a pipeline without running it (``epochal check``, submission).

The graph is evaluated with Spark over empty inputs, by the walk that the engine takes as well, so that what passes here
has the same columns there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.contracts.backend import names_place
from epochal.contracts.source import SliceLimits
from epochal.declarations.carried import carried_schema
from epochal.declarations.determinism import check_expression, check_function
from epochal.declarations.locations import is_absolute
from epochal.declarations.spark_errors import at, without_query_log
from epochal.errors import PipelineError
from epochal.operators.feedback import head_columns
from epochal.pipeline.description import GraphDescription, describe
from epochal.pipeline.epoch_time import calls_epoch_time
from epochal.pipeline.evaluate import empty_side, evaluate, place
from epochal.pipeline.event_time_checks import check_declared_once, check_event_time, check_inputs_of
from epochal.pipeline.graph import (
    EventTimeNode,
    Graph,
    Node,
    NodeId,
    OperatorNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
)
from epochal.pipeline.kinds import check_kinds
from epochal.pipeline.row_wise import as_stream, check_row_wise, with_marked_streams
from epochal.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.operators.contract import OperatorPlan


@dataclass(frozen=True)
class Analysis:
    """What a valid pipeline is made of. ``columns`` has the output of each node that is used: name -> Spark type."""

    graph: Graph
    columns: dict[NodeId, dict[str, str]]
    tables: tuple[StateTable, ...]

    @property
    def description(self) -> GraphDescription:
        """The graph with columns and state tables, as plain data."""
        plain = describe(self.graph)
        shown = {id: columns for id, columns in self.columns.items() if not _has_internal_rows(self.graph.node(id))}
        nodes = tuple(node.model_copy(update={"columns": shown.get(node.id)}) for node in plain.nodes)
        return plain.model_copy(update={"nodes": nodes, "tables": self.tables})


def analyse(graph: Graph, spark: SparkSession) -> Analysis:
    """Check a graph. Raises ``PipelineError``, ``SchemaError``, ``SinkError``, ``SourceError``: where, what, fix."""
    from pyspark.sql.pandas.types import from_arrow_schema

    _check_targets(graph)
    check_kinds(graph)
    tables: list[StateTable] = []
    plans: dict[NodeId, OperatorPlan] = {}
    frames: dict[NodeId, DataFrame] = {}

    def source(node: SourceNode) -> DataFrame:
        with at(f"Source {node.name!r}"):
            connector = node.make()
            schema = connector.schema(spark)
            connector.restore(None, ())
            connector.plan(
                SliceLimits(max_records=1)
            )  # nothing is taken; but is the folder there, does the server answer?
            return as_stream(spark.createDataFrame([], schema))

    def table(node: StaticNode) -> DataFrame:
        with at(f"Table {node.name!r}"):
            return node.read(spark).limit(0)

    def operator(node: OperatorNode, inputs: list[DataFrame]) -> DataFrame:
        check_inputs_of(graph, node, frames)
        plan = plans[node.id] = node.operator.plan(inputs)
        tables.extend(plan.tables)
        return as_stream(plan.finished(spark.createDataFrame([], from_arrow_schema(plan.output))))

    def event_time(node: EventTimeNode, frame: DataFrame) -> DataFrame:
        with at(place(graph, node.id)):
            check_event_time(node, frame)
            return frame

    def evaluated() -> None:
        tables.clear()
        evaluate(
            with_marked_streams(graph),
            source=source,
            table=table,
            operator=operator,
            event_time=event_time,
            side=lambda node: as_stream(empty_side(graph, node, frames, plans)),
            loop=lambda node: as_stream(spark.createDataFrame([], head_columns(node.feedback))),
            frames=frames,
        )

    with without_query_log():
        calls_epoch_time(spark, evaluated)
        check_declared_once(graph, frames)
        _check_inputs(graph, frames)
        check_row_wise(graph, frames)
        for node in graph.sinks:
            _check_sink(node, frames[node.id])
    columns = {id: dict(frame.dtypes) for id, frame in frames.items()}
    return Analysis(graph=graph, columns=columns, tables=tuple(tables))


def _has_internal_rows(node: Node) -> bool:
    if isinstance(node, OperatorNode):
        return node.operator.internal_rows
    return isinstance(node, TransformNode) and getattr(node.function, "internal_rows", False)


def _check_inputs(graph: Graph, frames: dict[NodeId, DataFrame]) -> None:
    """Of all that operators read, directly or not, and of what they compute themselves."""
    above = graph.ancestors(id for node in graph.operators for id in node.inputs)
    for node in graph.nodes:
        if isinstance(node, TransformNode) and node.id in above:
            inputs = [frames[id] for id in node.inputs]
            with at(place(graph, node.id)):
                for expression in node.expressions:
                    check_expression(expression, inputs[0])
                if node.by_author:
                    check_function(node.function, inputs)
        if isinstance(node, OperatorNode):
            node.operator.check([frames[id] for id in node.inputs])


def check_paths(graph: Graph) -> None:
    """Are files at the same place for whoever looks? For those that build a pipeline in one process and run it in
    another, with a working directory of its own. Raises ``PipelineError``."""
    for node in graph.nodes:
        if not isinstance(node, SourceNode | StaticNode | SinkNode) or node.description["kind"] != "files":
            continue
        path = node.description["path"]
        if not is_absolute(path):
            where = place(graph, node.id)
            raise PipelineError(
                f"{where[0].upper()}{where[1:]}: the path {path!r} is relative, and a driver runs in a folder of its "
                "own. Give an absolute path, or a URL."
            )


def _check_targets(graph: Graph) -> None:
    """Two sinks into one place would see each other's output as foreign."""
    owners: dict[str, str] = {}
    for node in graph.sinks:
        target = node.backend().target
        if not names_place(target):
            continue
        if target in owners:
            raise PipelineError(
                f"Sinks {owners[target]!r} and {node.name!r} write to the same target, {target}. Name two targets, "
                "or unite the streams and write them once."
            )
        owners[target] = node.name


def _check_sink(node: SinkNode, frame: DataFrame) -> None:
    with at(f"Sink {node.name!r}"):
        names = [name.casefold() for name in frame.columns]
        for name in names:
            if names.count(name) > 1:
                raise PipelineError(f"its input has two columns named {name!r}. Rename or drop one.")
        node.backend().check(carried_schema(frame.schema))
