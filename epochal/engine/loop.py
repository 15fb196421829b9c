"""The epoch loop: triggers, directives, tolerable failures. Knows neither Spark nor HTTP.

An epoch is triggered by the interval (no new input: no epoch) or by a request; of what is available now, by the end of
the one before. While ``max_uncommitted_epochs`` are
prepared and not committed the loop waits and says for which sink.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from epochal.contracts.catalog import Catalog, Directive, DriverStatus
from epochal.engine.commits import BackgroundCommits
from epochal.engine.coordinator import Coordinator
from epochal.engine.failures import failure_of
from epochal.engine.pace import Pace
from epochal.engine.program import Program
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.settings import Configuration
from epochal.engine.transactions import TransactionOrders
from epochal.errors import EpochAborted, ends_attempt
from epochal.snapshots.manifest import Manifest

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
LONGEST_IDLE_SECONDS = 0.25


@dataclass
class EpochLoop:
    """Runs until a ``stop`` directive, the end of all sources, ``epochs_limit``, or a failure."""

    coordinator: Coordinator
    commits: BackgroundCommits
    catalog: Catalog
    transactions: TransactionOrders
    reconfigurations: Reconfigurations
    pace: Pace = field(default_factory=Pace)
    epochs_limit: int | None = None
    on_epoch: Callable[[Manifest], None] = lambda manifest: None
    stop_requested: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _failed_in_a_row: int = field(default=0, init=False)
    _epochs_run: int = field(default=0, init=False)

    def run(self) -> None:
        """Raises ``Fenced``, and ``EpochAborted`` when more than ``tolerable_failed_epochs`` failed in a row, or one
        failed that would fail again."""
        while True:
            self.commits.check()
            directives = self.transactions.heartbeat(self._status())
            if self._carry_out(directives) or self._finished():
                self._commit_all()
                return
            if self.reconfigurations.ready:
                self.reconfigurations.carry_out(self._commit_all, self._first_epoch)
            if not self.commits.queue.has_room:
                self.commits.wait(lambda: self.commits.queue.has_room, POLL_SECONDS)
                continue
            if not self._due() or not self._run_epoch():
                self.sleep(min(LONGEST_IDLE_SECONDS, self._until_due() or POLL_SECONDS))

    def _run_epoch(self) -> bool:
        """One epoch, if there is input. False when there was none."""
        slices = self.coordinator.plan_slices(self.pace.limits(self._configuration))
        if not slices:
            return False
        self.pace.started(self.clock())
        try:
            manifest = self.coordinator.run_epoch(slices)
        except EpochAborted as error:
            self._failed_in_a_row += 1
            if ends_attempt(failure_of(error).type):
                raise
            if self._failed_in_a_row > self._configuration.tolerable_failed_epochs:
                raise
            return True
        self._ran(manifest)
        return True

    def _first_epoch(self) -> None:
        """Of another version: with the input that is there, also with none, so that it is decided now."""
        slices = self.coordinator.plan_slices(self.pace.limits(self._configuration))
        self.pace.started(self.clock())
        self._ran(self.coordinator.run_epoch(slices))

    def _ran(self, manifest: Manifest) -> None:
        self._failed_in_a_row = 0
        self._epochs_run += 1
        self.pace.prepared(self.clock(), manifest.counts.rows_in)
        self.on_epoch(manifest)

    @property
    def _program(self) -> Program:
        return self.coordinator.current.program

    @property
    def _configuration(self) -> Configuration:
        return self._program.configuration

    def _due(self) -> bool:
        return self._until_due() <= 0

    def _until_due(self) -> float:
        started = self.pace.last_start
        if started is None or self._program.orders.available_now:
            return 0.0
        return max(0.0, started + self._configuration.epoch_interval_seconds - self.clock())

    def _finished(self) -> bool:
        """All sources have ended, or as many epochs were run as were asked for."""
        if self.stop_requested() or (self.epochs_limit is not None and self._epochs_run >= self.epochs_limit):
            return True
        sources = self._program.participants.sources.values()
        return all(source.ended for source in sources)

    def _carry_out(self, directives: Sequence[Directive]) -> bool:
        """True when the loop shall end."""
        stop = False
        for directive in directives:
            stop |= self._answer(directive)
        return stop

    def _answer(self, directive: Directive) -> bool:
        if directive.kind == "reconfigure":
            self.reconfigurations.take(directive)
            return False
        log.info("directive %s: %s", directive.kind, directive.id)
        if directive.kind == "savepoint":
            self._run_epoch()
        self._commit_all()
        self.catalog.complete(directive.id, self.coordinator.position.head)
        return directive.kind == "stop"

    def _commit_all(self) -> None:
        """Wait until everything that is decided is committed."""
        while not self.commits.wait(lambda: self.commits.queue.empty, 0.25):
            self.transactions.heartbeat(self._status())

    def _status(self) -> DriverStatus:
        epoch = self.coordinator.position.head.epoch if self.coordinator.position.head else None
        waiting = "; ".join(str(item) for item in self.commits.queue.waiting.values())
        return DriverStatus(phase="waiting" if waiting else "running", detail=waiting or None, epoch=epoch)
