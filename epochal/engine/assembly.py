"""Assembly of a program from a graph: planned for Spark, with sources, backends and runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from epochal.contracts.backend import SinkBackend
from epochal.contracts.configuration import ExecutionOrders
from epochal.contracts.inbox import Inbox
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.contracts.source import Source
from epochal.contracts.state import StateBackend
from epochal.engine.job import Participants
from epochal.engine.planner import PipelinePlan, plan_pipeline
from epochal.engine.program import Program
from epochal.engine.spark_runner import SparkRunner
from epochal.operators.entries.plan import EntrySource
from epochal.operators.loops.plan import LoopHead, tail_of
from epochal.operators.loops.work import LoopTail
from epochal.pipeline.analysis import check_cached_state
from epochal.pipeline.graph import Graph, SinkNode
from epochal.pipeline.parallelism import check_parallelism
from epochal.snapshots.store import SnapshotStore
from epochal.tasks.dead_letters import DeadLetters

MakeSink = Callable[[SinkNode], SinkBackend]


def assemble(
    orders: ExecutionOrders, graph: Graph, spark: SparkSession, store: SnapshotStore, sink: MakeSink | None = None
) -> Program:
    """Plan a graph and create its sources and backends. ``sink`` creates the backend of a sink; ``None``: the sink's
    own.

    Raises ``PipelineError``, ``SchemaError``, ``SourceError``, ``OptionError``, each with the fix.
    """
    make_sink = sink or (lambda node: node.backend(store, orders.configuration.guarantee))
    sources: dict[str, Source] = {node.name: node.make() for node in graph.sources}
    check_parallelism(graph.scaled, orders.configuration)
    plan = plan_pipeline(graph, spark, sources)
    sinks = {} if orders.shadow else {node.name: make_sink(node) for node in graph.sinks}
    return spark_program(orders, graph, plan, spark, store, sources, sinks)


def spark_program(
    orders: ExecutionOrders,
    graph: Graph,
    plan: PipelinePlan,
    spark: SparkSession,
    store: SnapshotStore,
    sources: Mapping[str, Source],
    sinks: Mapping[str, SinkBackend],
) -> Program:
    """A program of a planned graph with these sources and sinks. Loops store their records in ``store``."""
    make_state: Callable[..., StateBackend] = find(STATE_BACKENDS, orders.configuration.state_backend)
    participants = Participants(
        sources={**sources, **heads_of(graph, store)},
        operators={node.name: make_state(node.name, store, orders.cache_directory) for node in graph.operators},
        sinks=sinks,
        tables=plan.tables,
        loops=tails_of(graph, store),
        dead_letters={
            node.rejects.sink: DeadLetters(node.name, sinks[node.name], node.rejects.most)
            for node in graph.sinks
            if node.rejects is not None and sinks
        },
    )
    check_cached_state(participants.tables, orders.configuration.state_backend)
    runner = SparkRunner(
        spark,
        graph,
        participants,
        plan.operators,
        orders.configuration,
        orders.shadow,
        plan.time,
        plan.calls_epoch_time,
    )
    return Program(orders, graph, plan, participants, runner)


def with_inbox(program: Program, inbox: Inbox) -> Program:
    """Connect the source of entry calls, if there is one, to the inbox."""
    for source in program.participants.sources.values():
        if isinstance(source, EntrySource):
            source.connect(inbox)
    return program


def heads_of(graph: Graph, store: SnapshotStore) -> dict[str, Source]:
    """The heads of a graph's loops, by name."""
    return {node.name: LoopHead(node.feedback, store) for node in graph.loops}


def tails_of(graph: Graph, store: SnapshotStore) -> dict[str, LoopTail]:
    """The tails of a graph's loops, by name."""
    return {node.name: tail_of(node.feedback, store) for node in graph.tails}
