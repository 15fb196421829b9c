"""Attempts of the engine without Spark, with the driver's coordinator, commit queue, recovery, retention and
compaction.

A process that runs :func:`attempt` can be killed at any fault point, like a driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from epochal.contracts.catalog import Catalog
from epochal.contracts.configuration import ExecutionOrders
from epochal.contracts.source import SliceLimits
from epochal.engine.commits import CommitQueue, until_available
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.job import Participants
from epochal.engine.meter import Meter
from epochal.engine.position import PendingBases
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.recovery import Recovery
from epochal.engine.retention import Retention
from epochal.engine.triggers import Step, decide
from epochal.errors import EpochAborted
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.testing.harness_engine import situation_of
from epochal.testing.state_world import SMALL_CELLS
from tests.kit.local_engine.engine import LocalPipeline, local_program
from tests.kit.local_engine.tasks import FAULTLESS, LocalTasks

CLOCK = partial(datetime.now, UTC)
_PAUSE_SECONDS = 0.02


class LocalAttempt:
    """One recovered attempt in one thread. Commits are deferred as far as permitted: the queue works when it is full,
    after a failure, and at the end."""

    def __init__(self, program: Program, catalog: Catalog, now: Callable[[], datetime] = CLOCK) -> None:
        store, current = SnapshotStore(program.orders.store), CurrentProgram(program)
        self._catalog = catalog
        catalog.begin_attempt()
        for name, sink in program.participants.sinks.items():
            until_available(name, partial(sink.check, program.plan.sinks[name]), time.sleep, lambda waiting: None)
        self._queue = CommitQueue(catalog, current, meter=Meter(clock=lambda: now().timestamp()))
        position = Recovery(program, catalog, store, self._queue, time.sleep, lambda waiting: None).run()
        bases = PendingBases()
        self.coordinator = Coordinator(current, catalog, store, self._queue, position, bases, now=now)
        self._compaction = Compaction(store, position, bases, current, sizes=SMALL_CELLS)
        self._retention = self._queue.retain = Retention(store, current, self._compaction, self.coordinator.aborted)

    def epoch(self, most: int | None = None) -> Manifest | None:
        """Run the next epoch, with at most ``most`` records per slice. Returns ``None`` if no epoch is due.

        Raises ``EpochAborted``, ``Fenced``.
        """
        while not self._queue.has_room:
            self.commit()
        slices = self.coordinator.plan_slices(SliceLimits(most))
        decision = decide(situation_of(self.coordinator, slices))
        if decision.step is not Step.OPEN:
            return None
        return self.coordinator.run_epoch(slices, decision.opened_for)

    def commit(self) -> None:
        """Try the first pending commit."""
        if not self._queue.step():
            time.sleep(_PAUSE_SECONDS)

    def commit_due(self) -> None:
        """Make every commit that is due now."""
        while self._queue.step():
            pass

    def commit_all(self) -> None:
        """Commit all decided epochs."""
        self._queue.flush()
        while not self._queue.empty:
            self.commit()

    def finish(self) -> None:
        """Commit all decided epochs, and end the attempt."""
        self.commit_all()
        self._retention.finish()
        self._compaction.finish()
        self._catalog.finish(None)


def attempt(
    orders: ExecutionOrders,
    pipeline: LocalPipeline,
    participants: Participants,
    catalog: Catalog,
    tasks: LocalTasks = FAULTLESS,
    epochs: int | None = None,
    now: Callable[[], datetime] = CLOCK,
    begun: Callable[[Coordinator], None] = lambda coordinator: None,
) -> None:
    """Run one attempt until no epoch is due ``now``, or for ``epochs`` epochs.

    ``begun`` is called before the first epoch, for example to deliver commands of a control plane.

    Raises the error that ends the attempt: ``Fenced``, or ``EpochAborted`` if more than ``tolerable_failed_epochs``
    epochs failed in a row.
    """
    running = LocalAttempt(local_program(orders, pipeline, participants, tasks), catalog, now)
    begun(running.coordinator)
    ran = failed = 0
    while epochs is None or ran < epochs:
        try:
            if running.epoch() is None:
                break
        except EpochAborted:
            failed += 1
            if failed > orders.configuration.tolerable_failed_epochs:
                raise
            running.commit()  # a pending commit can be the cause
            continue
        ran, failed = ran + 1, 0
    running.finish()
