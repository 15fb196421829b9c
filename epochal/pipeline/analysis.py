"""Analysis: all checks of a pipeline that are possible without running it.

``epochal check``, ``epochal run``, the submission of a version and the test harness call :func:`analyse` before
anything runs, so that all of them refuse the same pipelines. The graph is evaluated with Spark over empty inputs, by
the same walk as in the engine, so that columns are the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epochal.contracts.backend import names_place
from epochal.contracts.configuration import Configuration
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.contracts.source import SliceLimits
from epochal.declarations.determinism import check_expression, check_function
from epochal.declarations.schemas import carried_schema
from epochal.declarations.spark_errors import at, without_query_log
from epochal.errors import PipelineError
from epochal.operators.loops.plan import head_columns
from epochal.pipeline.definitions import is_absolute
from epochal.pipeline.description import GraphDescription, describe
from epochal.pipeline.epoch_time import calls_epoch_time, temporary_epoch_time
from epochal.pipeline.evaluate import empty_side, evaluate
from epochal.pipeline.event_time import check_declared_once, check_event_time, check_inputs_of
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
    place,
)
from epochal.pipeline.kinds import check_kinds
from epochal.pipeline.parallelism import check_parallelism
from epochal.pipeline.row_wise import as_stream, check_row_wise, with_marked_streams
from epochal.pipeline.state_definitions import with_definitions
from epochal.state.table import StateTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from epochal.contracts.state import StateBackend
    from epochal.operators.contract import OperatorPlan

_USUAL: Final = Configuration()


@dataclass(frozen=True)
class Analysis:
    """The result for a valid pipeline. ``columns``: the output of each used node, name -> Spark type.

    ``plans``: the plans of the operators, by node; ``sinks``: the columns of each sink; ``calls_epoch_time``: whether
    ``epoch_time()`` must be defined before the frames of an epoch are created; ``warnings``: those of the sinks.
    """

    graph: Graph
    columns: dict[NodeId, dict[str, str]]
    tables: tuple[StateTable, ...]
    plans: dict[NodeId, OperatorPlan]
    sinks: dict[str, pa.Schema]
    calls_epoch_time: bool
    warnings: tuple[str, ...] = ()

    @property
    def description(self) -> GraphDescription:
        """The graph with columns and state tables, as plain data."""
        plain = describe(self.graph)
        shown = {id: columns for id, columns in self.columns.items() if not _has_internal_rows(self.graph.node(id))}
        nodes = tuple(node.model_copy(update={"columns": shown.get(node.id)}) for node in plain.nodes)
        warnings = (*plain.warnings, *self.warnings)
        return plain.model_copy(update={"nodes": nodes, "tables": self.tables, "warnings": warnings})


def analyse(
    graph: Graph,
    spark: SparkSession,
    configuration: Configuration = _USUAL,
    *,
    connected: bool = True,
    elsewhere: bool = False,
) -> Analysis:
    """Check a graph. Raises ``PipelineError``, ``SchemaError``, ``SinkError``, ``SourceError``: where, what, fix.

    ``connected``: plan input of the sources, and check the targets of the sinks. Without it, only the columns of the
    sources and the types of the sinks are checked: for callers that connect themselves, and for tests. ``elsewhere``:
    the pipeline will run in another process, with a different working directory.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    check_graph(graph)
    check_parallelism(graph.scaled, configuration)
    if elsewhere:
        check_paths(graph)
    plans: dict[NodeId, OperatorPlan] = {}
    frames: dict[NodeId, DataFrame] = {}

    def source(node: SourceNode) -> DataFrame:
        with at(f"Source {node.name!r}"):
            connector = node.make()
            schema = connector.schema(spark)
            if connected:
                connector.restore(None, ())
                connector.plan(SliceLimits(max_records=1))  # reads nothing; raises if the source is unreachable
            return as_stream(spark.createDataFrame([], schema))

    def table(node: StaticNode) -> DataFrame:
        with at(f"Table {node.name!r}"):
            return node.read(spark).limit(0)

    def operator(node: OperatorNode, inputs: list[DataFrame]) -> DataFrame:
        check_inputs_of(graph, node, frames)
        plan = plans[node.id] = node.operator.plan(inputs)
        return as_stream(plan.finished(spark.createDataFrame([], from_arrow_schema(plan.output))))

    def event_time(node: EventTimeNode, frame: DataFrame) -> DataFrame:
        with at(place(graph, node.id)):
            check_event_time(node, frame)
            return frame

    def evaluated() -> None:
        plans.clear()
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

    with without_query_log(), temporary_epoch_time(spark):
        calls = calls_epoch_time(spark, evaluated)
        check_declared_once(graph, frames)
        _check_inputs(graph, frames)
        check_row_wise(graph, frames)
        warnings = list[str]()
        sinks = {node.name: _checked_sink(node, frames[node.id], connected, warnings) for node in graph.sinks}
    tables = with_definitions(graph, frames, plans)
    check_cached_state(tables, configuration.state_backend)
    columns = {id: dict(frame.dtypes) for id, frame in frames.items()}
    return Analysis(graph, columns, tables, plans, sinks, calls, tuple(warnings))


def check_graph(graph: Graph) -> None:
    """The checks of :func:`analyse` that need no Spark session."""
    _check_targets(graph)
    check_kinds(graph)


def _has_internal_rows(node: Node) -> bool:
    if isinstance(node, OperatorNode):
        return node.operator.internal_rows
    return isinstance(node, TransformNode) and getattr(node.function, "internal_rows", False)


def _check_inputs(graph: Graph, frames: dict[NodeId, DataFrame]) -> None:
    """Check the determinism of all verbs before operators, and of the expressions of operators."""
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
    """Raises ``PipelineError`` with the first of :func:`relative_paths`."""
    for message in relative_paths(graph):
        raise PipelineError(message)


def relative_paths(graph: Graph) -> Iterator[str]:
    """A message for each relative path, which a process with another working directory would not find."""
    for node in graph.nodes:
        if not isinstance(node, SourceNode | StaticNode | SinkNode) or node.description["kind"] != "files":
            continue
        path = node.description["path"]
        if not is_absolute(path):
            where = place(graph, node.id)
            yield (
                f"{where[0].upper()}{where[1:]}: the path {path!r} is relative, but a driver runs in a different "
                "directory. Use an absolute path, or a URL."
            )


def check_cached_state(tables: Iterable[StateTable], backend: str) -> None:
    """Raises ``PipelineError`` for a non-durable state table if the state backend only supports durable state."""
    backend_class: type[StateBackend] = find(STATE_BACKENDS, backend)
    for table in tables:
        if not table.durable and not backend_class.has_cached_state:
            raise PipelineError(
                f"State {table.id!r} has durable=False, which the state backend {backend!r} does not support. "
                "Remove it, or choose another state_backend."
            )


def _check_targets(graph: Graph) -> None:
    """Check that no two sinks write to the same target: each would treat the output of the other as foreign."""
    owners: dict[str, str] = {}
    for node in graph.sinks:
        target = node.backend().target
        if not names_place(target):
            continue
        if target in owners:
            raise PipelineError(
                f"Sinks {owners[target]!r} and {node.name!r} write to the same target, {target}. Use two targets, "
                "or combine the streams with union() and write them once."
            )
        owners[target] = node.name


def _checked_sink(node: SinkNode, frame: DataFrame, connected: bool, warnings: list[str]) -> pa.Schema:
    """The columns of the sink. Adds the warnings of its backend, if ``connected``."""
    with at(f"Sink {node.name!r}"):
        names = [name.casefold() for name in frame.columns]
        for name in names:
            if names.count(name) > 1:
                raise PipelineError(f"its input has two columns named {name!r}. Rename or drop one.")
        backend, schema = node.backend(), carried_schema(frame.schema)
        if connected:
            backend.check(schema)
            warnings += backend.warnings()
        else:
            backend.check_types(schema)
        return schema
