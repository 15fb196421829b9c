"""One attempt from its orders to its end: recovery, the epoch loop, and the orderly finish.

``run`` is all that a driver process, ``epochal run`` and the author's test harness call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.catalog import Catalog, Change, DriverStatus
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.contracts.source import Source
from epochal.contracts.state import StateBackend
from epochal.engine.bases import PendingBases
from epochal.engine.commits import BackgroundCommits, CommitQueue, Waiting, until_available
from epochal.engine.coordinator import Coordinator
from epochal.engine.failures import failure_of
from epochal.engine.job import Participants
from epochal.engine.loop import EpochLoop
from epochal.engine.operators import PipelinePlan, plan_pipeline
from epochal.engine.pace import Pace
from epochal.engine.position import Position
from epochal.engine.recovery import Recovery
from epochal.engine.retention import Retention
from epochal.engine.settings import ExecutionOrders
from epochal.engine.spark_runner import SparkRunner
from epochal.engine.transactions import TransactionOrders
from epochal.errors import Fenced
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hooks:
    """What the caller wants to see and to decide while the attempt runs. ``epochs_limit`` None: no limit."""

    on_epoch: Callable[[Manifest], None] = lambda manifest: None
    stop_requested: Callable[[], bool] = lambda: False
    epochs_limit: int | None = None


def run(orders: ExecutionOrders, graph: Graph, spark: SparkSession, catalog: Catalog, hooks: Hooks = Hooks()) -> None:
    """Run one attempt until it is stopped, its bounded sources end, or it fails.

    Returns after a normal end; ``catalog.finish`` was called. Raises ``Fenced`` when a later attempt has taken over
    (nothing more may be done), any other error after ``catalog.finish`` was told of it.
    """
    try:
        _run(orders, graph, spark, catalog, hooks)
    except Fenced:
        raise
    except Exception as error:
        log.exception("the attempt failed")
        catalog.finish(failure_of(error))
        raise
    catalog.finish(None)


def _run(orders: ExecutionOrders, graph: Graph, spark: SparkSession, catalog: Catalog, hooks: Hooks) -> None:
    configuration = orders.configuration
    catalog.heartbeat(DriverStatus(phase="starting"))
    store = SnapshotStore(orders.store)
    sources = {node.name: node.make() for node in graph.sources}
    plan = plan_pipeline(graph, spark, sources)
    participants = _participants(orders, graph, store, sources, plan)
    queue = CommitQueue(catalog, participants, configuration.max_uncommitted_epochs)
    changes: list[Change] = []
    transactions = TransactionOrders(catalog, queue, changes)

    def note(waiting: Sequence[Waiting]) -> None:
        transactions.heartbeat(DriverStatus(phase="waiting", detail="; ".join(map(str, waiting)) or None))

    for name, sink in participants.sinks.items():
        until_available(name, partial(sink.check, plan.sinks[name]), time.sleep, note)
    catalog.heartbeat(DriverStatus(phase="recovering"))
    recovery = Recovery(orders, catalog, store, participants, queue, time.sleep, note)
    position = recovery.run()
    changes += _first_changes(position, recovery.begun)
    bases = PendingBases()
    coordinator = Coordinator(
        orders=orders,
        catalog=catalog,
        store=store,
        runner=SparkRunner(spark, graph, participants, plan.operators, configuration, orders.shadow),
        participants=participants,
        commits=queue,
        position=position,
        bases=bases,
        changes=changes,
    )
    retention = queue.retain = Retention(
        store, participants, position, bases, configuration.compact_after_epochs, coordinator.aborted
    )
    commits = BackgroundCommits(queue)
    commits.start()
    try:
        EpochLoop(
            coordinator=coordinator,
            commits=commits,
            catalog=catalog,
            transactions=transactions,
            pace=Pace(configuration.max_records_per_epoch, configuration.target_epoch_seconds),
            interval_seconds=configuration.epoch_interval_seconds,
            tolerable_failed_epochs=configuration.tolerable_failed_epochs,
            epochs_limit=hooks.epochs_limit,
            on_epoch=hooks.on_epoch,
            stop_requested=hooks.stop_requested,
        ).run()
    finally:
        commits.stop()
    retention.finish()
    bases.discard(store)


def _participants(
    orders: ExecutionOrders,
    graph: Graph,
    store: SnapshotStore,
    sources: dict[str, Source],
    plan: PipelinePlan,
) -> Participants:
    make_state: Callable[..., StateBackend] = find(STATE_BACKENDS, orders.configuration.state_backend)
    sinks: dict[str, SinkBackend] = {}
    if not orders.shadow:
        sinks = {node.name: node.make(SinkPlace(node.name, store)) for node in graph.sinks}
    return Participants(
        sources=sources,
        operators={node.name: make_state(node.name, store, orders.cache_directory) for node in graph.operators},
        sinks=sinks,
        tables=plan.tables,
    )


def _first_changes(position: Position, begun: Change | None) -> list[Change]:
    """What the first epoch of a branch says of where it comes from."""
    if position.parent is None:
        return [Change(kind="start")]
    if position.parent.branch != position.branch:
        detail = {"branch": position.parent.branch, "epoch": position.parent.epoch}
        return [begun or Change(kind="fork", detail=detail)]
    return []
