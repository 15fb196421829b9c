"""The epoch loop: directives, decisions and tolerated failures, without Spark and HTTP.

:mod:`epochal.engine.triggers` decides the next step. While ``max_uncommitted_epochs`` epochs are prepared and
uncommitted, the loop waits and reports the sinks that it waits for. While the snapshot store or a source does not
answer, it waits (:class:`StoreWait`, :class:`SourceWait`), and no epoch counts as failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from epochal.contracts.catalog import Catalog, Change, Directive, DriverStatus, Failure, TransactionOrder
from epochal.contracts.conditions import Command
from epochal.contracts.configuration import Configuration
from epochal.contracts.source import Slice
from epochal.engine.commits import BackgroundCommits, CommitQueue
from epochal.engine.coordinator import Coordinator
from epochal.engine.epoch_input import Pace
from epochal.engine.executor_wait import ExecutorWait
from epochal.engine.failures import failure_of
from epochal.engine.optimization import Optimizations
from epochal.engine.program import Program
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.store_wait import StoreWait
from epochal.engine.triggers import POLL_SECONDS, Decision, Step, decide
from epochal.errors import Conflict, EpochAborted, RowRefused, SliceOutdated, ends_attempt
from epochal.snapshots.manifest import Manifest

log = logging.getLogger(__name__)


@dataclass
class EpochLoop:
    """Runs until a ``stop`` directive, the end of all sources, ``epochs_limit``, or a failure."""

    coordinator: Coordinator
    commits: BackgroundCommits
    catalog: Catalog
    transactions: TransactionOrders
    reconfigurations: Reconfigurations
    optimizations: Optimizations
    pace: Pace = field(default_factory=Pace)
    epochs_limit: int | None = None
    on_epoch: Callable[[Manifest], None] = lambda manifest: None
    stop_requested: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    clock_warning: Callable[[], str | None] = lambda: None
    executors: ExecutorWait | None = None
    store_wait: StoreWait = field(init=False)
    _failed_in_a_row: int = field(default=0, init=False)
    _epochs_run: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.store_wait = StoreWait(self.coordinator.store, self.clock)

    def run(self) -> None:
        """Raises ``Fenced``, and ``EpochAborted`` when more than ``tolerable_failed_epochs`` failed in a row or a
        failure is permanent; ``RowRefused`` at the end, when a refused row has stopped a sink."""
        while True:
            self.commits.check()
            directives = self.transactions.heartbeat(self._status())
            if self._carry_out(directives):
                self._settle()
                return
            if self._stops():
                break
            if self._waits():
                continue
            decision, slices = self._next()
            if decision.step is Step.END:
                break
            if self.reconfigurations.ready:
                self.reconfigurations.carry_out(self._commit_all, self._first_epoch)
                continue
            match decision.step:
                case Step.WAIT_FOR_COMMITS:
                    self.commits.wait(lambda: self.commits.queue.has_room, POLL_SECONDS)
                case Step.PAUSE:
                    if self.commits.queue.empty:
                        self.coordinator.meter.idle()
                    self.sleep(decision.seconds)
                case Step.OPEN:
                    self._run_epoch(decision, slices)
        self._settle()
        self.commits.queue.check_refused()

    def _waits(self) -> bool:
        """Pause while there is no executor, the store is away, or a source that tasks cannot read. Returns false when
        work can continue."""
        if self.executors is not None and (seconds := self.executors.seconds()):
            self.sleep(seconds)
            return True
        self.executors = None
        store_was_away = self.store_wait.away is not None
        if seconds := self.store_wait.seconds() or self.coordinator.source_wait.seconds():
            self.sleep(seconds)
            return True
        if store_was_away:
            self.commits.queue.hurry()  # sinks that read the store
        return False

    def _next(self, hurried: bool = False, commanded: bool = False) -> tuple[Decision, dict[str, Slice]]:
        """The next step, and the slices of the sources if the decision needed them."""
        situation = self.coordinator.situation(self._until_interval(), hurried=hurried, commanded=commanded)
        decision = decide(situation)
        if decision.step is not Step.ASK_SOURCES:
            return decision, {}
        slices = self.coordinator.plan_slices(self.pace.limits(self._configuration))
        return decide(replace(situation, has_input=self.coordinator.has_input(slices))), slices

    def _run_epoch(self, decision: Decision, slices: Mapping[str, Slice], *commands: Command) -> None:
        """Run one epoch to its decision or to a tolerated abort."""
        self.pace.started(self.clock())
        try:
            manifest = self.coordinator.run_epoch(slices, decision.opened_for, commands)
        except EpochAborted as error:
            failed = failure_of(error).type
            if failed == SliceOutdated.slug:  # the next plan leaves the missing file out
                return
            cause = failure_of(error.__cause__ or error)
            if self.store_wait.explains(cause) or self.coordinator.source_wait.explains(cause, slices):
                return
            self._failed_in_a_row += 1
            if ends_attempt(failed):
                raise
            if self._failed_in_a_row > self._configuration.tolerable_failed_epochs:
                raise
        else:
            self._ran(manifest)

    def _first_epoch(self) -> None:
        """Run the first epoch of another version with the available input, even without any, so that it is decided
        now."""
        decision, slices = self._next(commanded=True)
        self.pace.started(self.clock())
        command = Command(kind="reconfigure", detail={"version": self._program.orders.version})
        self._ran(self.coordinator.run_epoch(slices, decision.opened_for, [command]))

    def _ran(self, manifest: Manifest) -> None:
        self._failed_in_a_row = 0
        self.store_wait.worked()
        self.coordinator.source_wait.worked()
        self._epochs_run += 1
        self.pace.prepared(self.clock(), manifest.counts.rows_in)
        self.on_epoch(manifest)

    @property
    def _program(self) -> Program:
        return self.coordinator.current.program

    @property
    def _configuration(self) -> Configuration:
        return self._program.configuration

    def _until_interval(self) -> float:
        started = self.pace.last_start
        if started is None or self._program.orders.available_now:
            return 0.0
        return max(0.0, started + self._configuration.epoch_interval_seconds - self.clock())

    def _stops(self) -> bool:
        """True if a stop was requested or the epochs limit is reached."""
        return self.stop_requested() or (self.epochs_limit is not None and self._epochs_run >= self.epochs_limit)

    def _carry_out(self, directives: Sequence[Directive]) -> bool:
        """Carry out directives. Returns true to end the loop."""
        stop = False
        queries = [directive for directive in directives if directive.kind == "query"]
        if queries:
            self._change_queries(queries)
        for directive in directives:
            stop |= directive.kind != "query" and self._answer(directive)
        return stop

    def _change_queries(self, directives: Sequence[Directive]) -> None:
        """Carry out all received commands on standing queries in one epoch, with or without input."""
        queries, position = self.coordinator.queries, self.coordinator.position
        for directive in directives:
            queries.take(directive)
        self._answer_queries()
        if not queries.waits:
            return
        if self.coordinator.drained:
            failure = Failure(
                type=Conflict.slug, message="The input of the application has ended; no further epoch runs."
            )
            for directive in directives:
                self.catalog.complete(directive.id, position.head, failure)
            return
        self._wait_until(lambda: self.commits.queue.has_room)
        decision, slices = self._next(commanded=True)
        if decision.step is Step.OPEN:
            self._run_epoch(decision, slices, Command(kind="queries"))
            self._answer_queries()

    def _answer_queries(self) -> None:
        position = self.coordinator.position
        for directive, head, failure in self.coordinator.queries.answers(position.head, position.snapshot):
            self.catalog.complete(directive, head, failure)

    def _answer(self, directive: Directive) -> bool:
        if directive.kind == "reconfigure":
            self.reconfigurations.take(directive)
            return False
        if directive.kind == "optimize":
            self.optimizations.carry_out(directive)
            return False
        log.info("directive %s: %s", directive.kind, directive.id)
        if directive.kind == "stop":
            self._settle()
        else:
            try:
                self._savepoint()
            except RowRefused as error:  # epochs continue; they commit after the row is resolved
                self.catalog.complete(directive.id, None, failure_of(error))
                return False
        self.catalog.complete(directive.id, self.coordinator.position.head)
        return directive.kind == "stop"

    def _savepoint(self) -> None:
        """Run one epoch with the available input, so that the savepoint includes it; without input the head is used.

        Raises ``RowRefused`` while a sink is stopped.
        """
        self.commits.queue.check_refused()
        if not self.commits.queue.has_room:
            self._commit_all()
        decision, slices = self._next(hurried=True)
        if decision.step is Step.OPEN:
            self._run_epoch(decision, slices, Command(kind="savepoint"))
        self._commit_all()

    def _commit_all(self) -> None:
        """Wait until every decided epoch is committed. Raises ``RowRefused`` when a refused row stops a sink, since no
        epoch could open until the row is resolved."""
        while not self.commits.queue.empty:
            self._settle()
            self.commits.queue.check_refused()

    def _settle(self) -> None:
        """Wait until every decided epoch is committed, except in stopped sinks."""
        self.commits.queue.flush()
        self._wait_until(lambda: self.commits.queue.settled)

    def _wait_until(self, committed: Callable[[], bool]) -> None:
        while not self.commits.wait(committed, 0.25):
            self.transactions.heartbeat(self._status())

    def _status(self) -> DriverStatus:
        blocked = list(self.commits.queue.waiting.values())
        self.coordinator.meter.blocked({item.sink: item.since for item in blocked})
        away = self.store_wait.away
        self.coordinator.meter.store_away(None if away is None else away.since)
        epoch = self.coordinator.position.head.epoch if self.coordinator.position.head else None
        sources = self.coordinator.source_wait.away
        missing = [] if self.executors is None or not self.executors.seconds() else [str(self.executors)]
        said = [*missing, *([] if away is None else [str(away)]), *map(str, sources), *map(str, blocked)]
        waits = bool(said)
        if (warning := self.clock_warning()) is not None:
            said.append(warning)
        return DriverStatus(phase="waiting" if waits else "running", detail="; ".join(said) or None, epoch=epoch)


@dataclass
class TransactionOrders:
    """Orders of an administrator on open transactions, carried out between epochs and while waiting for commits.

    An order is answered when it has taken effect: immediately for ``retry``, after the sink has advanced for ``commit``
    and ``abort``. Until then it is delivered again, also to the next attempt, where repeating it has the same effect.
    ``changes``: changes for the next manifest, which records the order permanently.
    """

    catalog: Catalog
    queue: CommitQueue
    changes: list[Change]
    _under_way: dict[str, TransactionOrder] = field(default_factory=dict, init=False)

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        """Send a heartbeat and carry out received transaction orders. Returns the other directives."""
        status = status.model_copy(update={"transactions": self.queue.transactions()})
        directives = self.catalog.heartbeat(status)
        for directive in directives:
            if directive.kind == "transaction" and directive.id not in self._under_way:
                self._take(directive)
        self._answer_what_is_done()
        return [directive for directive in directives if directive.kind != "transaction"]

    def _take(self, directive: Directive) -> None:
        order = TransactionOrder.model_validate(directive.arguments, extra="ignore")
        if not self.queue.is_open(order.sink, order.epoch):
            self._complete(directive.id, _too_late(order))
        elif order.action == "retry":
            self.queue.hurry()
            self._complete(directive.id)
        else:
            self._under_way[directive.id] = order
            self.queue.give_up(order.sink, order.epoch)

    def _answer_what_is_done(self) -> None:
        for directive, order in list(self._under_way.items()):
            if self.queue.is_open(order.sink, order.epoch):
                continue
            del self._under_way[directive]
            if self.queue.was_given_up(order.sink, order.epoch):
                self.changes.append(Change(kind="transaction", detail=order.model_dump(exclude_none=True)))
                self._complete(directive)
            else:
                self._complete(directive, _too_late(order))

    def _complete(self, directive: str, failure: Failure | None = None) -> None:
        self.catalog.complete(directive, None, failure)


def _too_late(order: TransactionOrder) -> Failure:
    message = f"Epoch {order.epoch} is no longer open in sink {order.sink!r}; the order had no effect."
    return Failure(type=Conflict.slug, message=message)
