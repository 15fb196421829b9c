"""One attempt of an execution: recovery, the epoch loop, and the orderly end.

``run`` is the only entry point for driver processes, ``epochal run`` and the test harness.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pyspark.sql import SparkSession

from epochal.background.worker import BackgroundWorker
from epochal.contracts.catalog import Catalog, Change, DriverStatus, VersionOrder
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.inbox import NO_INBOX, Inbox
from epochal.contracts.measurements import StateSize
from epochal.engine.assembly import assemble, with_inbox
from epochal.engine.clock import EpochClock
from epochal.engine.commits import ABORT_COMMAND, BackgroundCommits, CommitQueue, Waiting, until_available
from epochal.engine.compaction import Compaction, Merging
from epochal.engine.compaction_job import SparkMerging
from epochal.engine.compaction_process import MergingProcess
from epochal.engine.coordinator import Coordinator
from epochal.engine.executor_wait import ExecutorWait
from epochal.engine.failures import failure_of
from epochal.engine.loop import EpochLoop, TransactionOrders
from epochal.engine.meter import Meter
from epochal.engine.optimization import Optimizations
from epochal.engine.position import PendingBases, Position
from epochal.engine.program import CurrentProgram, Program, changes_since, going_on
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.recovery import Recovery, decided_scope, take_over
from epochal.engine.retention import Retention
from epochal.engine.source_wait import SourceAway
from epochal.engine.store_wait import StoreAway, until_answered
from epochal.errors import Conflict, Fenced
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.merge_policy import bytes_of, rows_of
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)


def _no_other_version(order: VersionOrder) -> Graph:
    raise Conflict("This run has no control plane and cannot switch to another version.")


@dataclass(frozen=True)
class Hooks:
    """Callbacks and options of an attempt. ``epochs_limit``: maximum number of epochs; ``None``: no limit.

    ``load``: returns the graph of another version that the control plane orders; it runs the author's code. ``meter``:
    measurements of the attempt; ``None``: not reported. ``inbox``: calls of entries, which also wake the loop.
    ``clock``: the epoch clock; ``None``: one that reads the clocks of this machine. ``at_end`` is called before
    ``catalog.finish``. ``aborted``: sinks and epochs whose decided rows are dropped, in that sink only;
    ``abort_command``: the command for this that messages show.
    """

    on_epoch: Callable[[Manifest], None] = lambda manifest: None
    stop_requested: Callable[[], bool] = lambda: False
    epochs_limit: int | None = None
    load: Callable[[VersionOrder], Graph] = _no_other_version
    meter: Meter | None = None
    inbox: Inbox = NO_INBOX
    clock: EpochClock | None = None
    at_end: Callable[[], None] = lambda: None
    aborted: tuple[tuple[str, int], ...] = ()
    abort_command: str = ABORT_COMMAND


def run(orders: ExecutionOrders, graph: Graph, spark: SparkSession, catalog: Catalog, hooks: Hooks = Hooks()) -> None:
    """Run one attempt until it is stopped, its sources end, or it fails.

    Returns after a normal end, when ``catalog.finish`` has been called. Raises ``Fenced`` when a later attempt has
    taken over, and any other error after ``catalog.finish`` has recorded it.
    """
    try:
        _run(orders, graph, spark, catalog, hooks)
    except Fenced:
        raise
    except Exception as error:
        log.exception("the attempt failed")
        hooks.at_end()
        catalog.finish(failure_of(error))
        raise
    hooks.at_end()
    catalog.finish(None)


def _run(orders: ExecutionOrders, graph: Graph, spark: SparkSession, catalog: Catalog, hooks: Hooks) -> None:
    attempt = _Attempt(orders, graph, spark, catalog, hooks, SnapshotStore(orders.store), hooks.meter or Meter())
    try:
        # Every step of the beginning can be repeated, so that it waits for the store and sources as epochs do.
        begun = until_answered(attempt.begin, attempt.store, time.sleep, attempt.note_waiting)
    except _StoppedWhileWaiting:
        return
    attempt.run_epochs(begun)


class _StoppedWhileWaiting(Exception):
    """A stop was requested while the beginning of the attempt waited, and no decided epoch has to be committed."""


@dataclass(frozen=True)
class _Begun:
    """An attempt after recovery, before its first epoch."""

    current: CurrentProgram
    queue: CommitQueue
    clock: EpochClock
    transactions: TransactionOrders
    recovery: Recovery
    position: Position
    changes: list[Change]


@dataclass(frozen=True)
class _Attempt:
    orders: ExecutionOrders
    graph: Graph
    spark: SparkSession
    catalog: Catalog
    hooks: Hooks
    store: SnapshotStore
    meter: Meter

    def note_waiting(self, away: Sequence[StoreAway | SourceAway]) -> None:
        """Report what the beginning waits for. Raises ``_StoppedWhileWaiting`` for a stop."""
        self.meter.store_away(next((each.since for each in away if isinstance(each, StoreAway)), None))
        phase: Literal["recovering", "waiting"] = "waiting" if away else "recovering"
        status = DriverStatus(phase=phase, detail="; ".join(map(str, away)) or None)
        stops = [directive for directive in self.catalog.heartbeat(status) if directive.kind == "stop"]
        if not away or not (stops or self.hooks.stop_requested()):
            return
        point = self.catalog.begin_attempt()
        if point.prepared:
            return  # like any stop, this one waits until all decided epochs are committed
        for directive in stops:
            self.catalog.complete(directive.id, point.head)
        raise _StoppedWhileWaiting

    def begin(self) -> _Begun:
        """Assemble the program, recover, and find what the first epoch records."""
        orders, catalog, hooks, store, meter = self.orders, self.catalog, self.hooks, self.store, self.meter
        catalog.heartbeat(DriverStatus(phase="starting"))
        program = with_inbox(assemble(orders, self.graph, self.spark, store), hooks.inbox)
        current = CurrentProgram(program)
        queue = CommitQueue(catalog, current, meter=meter, abort_command=hooks.abort_command)
        for sink_name, epoch in hooks.aborted:
            queue.give_up(sink_name, epoch)
        clock = hooks.clock or EpochClock(lambda: current.program.configuration.clock_tolerance_seconds)
        changes: list[Change] = []
        transactions = TransactionOrders(catalog, queue, changes)
        note = partial(self._note_sinks, transactions)
        for name, sink in program.participants.sinks.items():
            until_available(name, partial(sink.check, program.plan.sinks[name]), time.sleep, note)
        catalog.heartbeat(DriverStatus(phase="recovering"))
        recovery = Recovery(program, catalog, store, queue, time.sleep, note, clock)
        with meter.step("R"):
            position = recovery.run()
        changes += _dropped(queue, hooks.aborted)
        meter.blocked({})
        meter.sized(lambda: sizes_of(position))
        meter.timed(lambda: clock.report(_epoch_time(position)))
        if warning := clock.warning(_epoch_time(position)):
            log.warning("%s", warning)
        continuing = going_on(program, position.snapshot, position.next_epoch)
        if continuing is not program:
            program = continuing
            current.replace(program)
        changes += _first_changes(position, recovery.begun)
        if position.head is not None:
            changes += changes_since(store, position.head, program)
        return _Begun(current, queue, clock, transactions, recovery, position, changes)

    def run_epochs(self, begun: _Begun) -> None:
        orders, catalog, hooks, store, meter = self.orders, self.catalog, self.hooks, self.store, self.meter
        current, queue, clock, position = begun.current, begun.queue, begun.clock, begun.position
        bases = PendingBases()
        coordinator = Coordinator(
            current=current,
            catalog=catalog,
            store=store,
            commits=queue,
            position=position,
            bases=bases,
            now=clock,
            changes=begun.changes,
            meter=meter,
        )

        def on_spark(configuration: Configuration) -> Merging:
            return SparkMerging(self.spark, store, max(1, configuration.parallelism // 2))

        compaction = Compaction(
            store,
            position,
            bases,
            current,
            BackgroundWorker("epochal-compaction"),
            on_spark,
            MergingProcess(store),
            meter=meter,
        )
        retention = queue.retain = Retention(store, current, compaction, coordinator.aborted)

        def other_version(order: VersionOrder) -> Program:
            assembled = assemble(ordered(orders, order), hooks.load(order), self.spark, store)
            program = with_inbox(assembled, hooks.inbox)
            for name, sink in program.participants.sinks.items():
                sink.check(program.plan.sinks[name])
            return program

        def taken_over(program: Program) -> None:
            scope = decided_scope(program.orders, position.branch, position.head)
            note = partial(self._note_sinks, begun.transactions)
            take_over(program.participants, scope, begun.recovery.succession, time.sleep, note)

        optimizations = Optimizations(catalog, current)
        commits = BackgroundCommits(queue)
        commits.start()
        try:
            EpochLoop(
                coordinator=coordinator,
                commits=commits,
                catalog=catalog,
                transactions=begun.transactions,
                reconfigurations=Reconfigurations(coordinator, queue, retention, catalog, other_version, taken_over),
                optimizations=optimizations,
                epochs_limit=hooks.epochs_limit,
                on_epoch=hooks.on_epoch,
                stop_requested=hooks.stop_requested,
                sleep=hooks.inbox.wait,
                clock_warning=lambda: clock.warning(_epoch_time(position)),
                executors=ExecutorWait.of(self.spark, orders.configuration.master),
            ).run()
        finally:
            optimizations.stop()
            commits.stop()
        retention.finish()
        compaction.finish()

    def _note_sinks(self, transactions: TransactionOrders, waiting: Sequence[Waiting]) -> None:
        self.meter.blocked({item.sink: item.since for item in waiting})
        transactions.heartbeat(DriverStatus(phase="waiting", detail="; ".join(map(str, waiting)) or None))


def ordered(before: ExecutionOrders, order: VersionOrder) -> ExecutionOrders:
    """Orders of an attempt that continues with another version. Raises ``ValidationError``."""
    return before.model_copy(
        update={
            "artifact": order.artifact,
            "parameters": order.parameters,
            "configuration": Configuration.model_validate(order.configuration),
            "version": order.version,
            "by": order.by,
            "message": order.message,
            "acceptance": order.acceptance,
        }
    )


def sizes_of(position: Position) -> dict[str, StateSize]:
    """Rows and bytes of the files of each state table."""
    return {table: StateSize(rows=rows_of(chain), bytes=bytes_of([chain])) for table, chain in position.chains.items()}


def _epoch_time(position: Position) -> int | None:
    """Epoch time of the latest prepared epoch, in microseconds."""
    return None if position.snapshot is None else position.snapshot.clock.epoch_time


def _dropped(queue: CommitQueue, aborted: Sequence[tuple[str, int]]) -> list[Change]:
    """Changes that the next manifest records for dropped parts. Raises ``Conflict`` for an epoch that is not open in
    its sink."""
    for sink, epoch in aborted:
        if not queue.is_open(sink, epoch) and not queue.was_given_up(sink, epoch):
            raise Conflict(f"Epoch {epoch} is not open in sink {sink!r}; no rows were dropped.")
    return [
        Change(kind="transaction", detail={"action": "abort", "sink": sink, "epoch": epoch}) for sink, epoch in aborted
    ]


def _first_changes(position: Position, begun: Change | None) -> list[Change]:
    """Changes that the first epoch of a branch records: its start or its parent branch."""
    if position.parent is None:
        return [Change(kind="start")]
    if position.parent.branch != position.branch:
        detail = {"branch": position.parent.branch, "epoch": position.parent.epoch}
        return [begun or Change(kind="fork", detail=detail)]
    return []
