"""Reconfiguration at an epoch boundary, without a restart (thesis 4.5.5; design/epochs.md).

Another version is assembled while epochs run. At the next boundary, when all decided epochs are committed, it becomes
the active version. If its first epoch is prepared, the catalog records the version together with this epoch; if it is
aborted, the previous version continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.background.task import BackgroundTask
from epochal.contracts.catalog import Catalog, Change, Directive, Failure, VersionOrder
from epochal.contracts.configuration import ExecutionOrders
from epochal.engine import points
from epochal.engine.commits import CommitQueue
from epochal.engine.coordinator import Coordinator
from epochal.engine.failures import failure_of
from epochal.engine.program import Program, changes_since, check_continues, going_on
from epochal.engine.recovery import limit_sources, restore_sources
from epochal.engine.retention import Retention
from epochal.errors import EpochAborted, Fenced, RowRefused
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import read_chains

NUMBERS = ("parallelism", "parallelisms")
"""Settings with numbers of subtasks."""

log = logging.getLogger(__name__)


@dataclass
class Reconfigurations:
    """Accepts orders for other versions and activates them. The loop's thread makes all calls; only assembly runs in
    another thread.

    ``assemble`` creates a program from an order; ``take_over`` is R1 for its operators and sinks.
    """

    coordinator: Coordinator
    queue: CommitQueue
    retention: Retention
    catalog: Catalog
    assemble: Callable[[VersionOrder], Program]
    take_over: Callable[[Program], None]
    _taken: str | None = None
    _ready: Program | None = None
    _failure: Failure | None = None
    _assembled: threading.Event = field(default_factory=threading.Event)

    def take(self, directive: Directive) -> None:
        """Begin to assemble a version. Without effect while an order is in progress."""
        if self._taken is not None:
            return
        order = VersionOrder.model_validate(directive.arguments, extra="ignore")
        if order.version == self.coordinator.current.program.orders.version:
            # An earlier attempt has decided it, but could not answer.
            self.catalog.complete(directive.id, self.coordinator.position.head)
            return
        self._taken, self._ready, self._failure = directive.id, None, None
        self._assembled.clear()
        log.info("E1 reconfigure: version %d is being assembled", order.version)
        BackgroundTask("assembly", lambda: self._assemble(order))

    @property
    def ready(self) -> bool:
        """True if an assembly has ended and must be carried out at the next epoch boundary."""
        return self._taken is not None and self._assembled.is_set()

    def carry_out(self, commit_all: Callable[[], None], first_epoch: Callable[[], None]) -> None:
        """Switch to the new version at an epoch boundary, or answer with the failure. Raises ``Fenced``; after any
        other error the previous version stays active.

        ``commit_all`` returns when all decided epochs are committed, and raises ``RowRefused`` while a sink is stopped;
        ``first_epoch`` runs an epoch, with or without input.
        """
        successor, directive = self._ready, self._taken
        assert directive is not None  # the caller has checked ``ready``
        self._taken = None
        if successor is None:
            assert self._failure is not None  # the assembly has ended one way or the other
            self.catalog.complete(directive, None, self._failure)
            return
        try:
            commit_all()
        except RowRefused as error:
            log.warning("E1 reconfigure: version %s is abandoned: %s", successor.orders.version, error)
            self.catalog.complete(directive, None, failure_of(error))
            return
        points.E1_DRAINED.hit()
        try:
            self.switch(successor, first_epoch)
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 after any error the previous version continues
            failure = failure_of(error.__cause__ if isinstance(error, EpochAborted) and error.__cause__ else error)
            log.warning("E1 reconfigure: version %s is abandoned: %s", successor.orders.version, failure.message)
            self.catalog.complete(directive, None, failure)
        else:
            points.E1_DECIDED.hit()
            log.info("E1 reconfigure: version %s is active", successor.orders.version)
            self.catalog.complete(directive, self.coordinator.position.head)

    def switch(self, successor: Program, first_epoch: Callable[[], None]) -> None:
        """Activate ``successor`` and run its first epoch. All decided epochs have been committed.

        Raises the error of the switch or of the first epoch; the previous version is then active again, except after
        ``Fenced``.
        """
        before, chains = self.coordinator.current.program, self.coordinator.position.chains
        noted = list(self.coordinator.changes)
        try:
            self._go_on_with(successor)
            points.E1_SWITCHED.hit()
            first_epoch()
        except Fenced:
            raise
        except Exception:
            self.coordinator.changes[:] = noted
            self.take_over(before)
            self._install(before, chains)
            points.E1_REVERTED.hit()
            raise

    def _assemble(self, order: VersionOrder) -> None:
        try:
            self._ready = self.assemble(order)
            points.E1_ASSEMBLED.hit()
        except Exception as error:
            log.exception("E1 reconfigure: version %d cannot be assembled", order.version)
            self._failure = failure_of(error)
        self._assembled.set()

    def _go_on_with(self, program: Program) -> None:
        """Restore sources at the head, take sinks over, read chains of the declared tables, and record changes."""
        store, head = self.coordinator.store, self.coordinator.position.head
        if head is not None:
            check_continues(store, head, program)
            program = going_on(program, self.coordinator.position.snapshot, self.coordinator.position.next_epoch)
            self.coordinator.changes += changes_since(store, head, program)
        self.coordinator.changes += configured(self.coordinator.current.program.orders, program.orders)
        begun = next((change for change in self.coordinator.changes if change.kind == "import"), None)
        restore_sources(store, head, program.participants.sources, begun)
        limit_sources(program)
        self.take_over(program)
        points.E1_TAKEN_OVER.hit()
        self._install(program, read_chains(store, head, [table.id for table in program.participants.tables]))

    def _install(self, program: Program, chains: dict[str, Chain]) -> None:
        with self.queue.retaining:
            self.retention.finish()
            self.coordinator.current.replace(program)
            self.coordinator.position.chains = chains


def configured(before: ExecutionOrders, after: ExecutionOrders) -> list[Change]:
    """Changed settings, except for numbers of subtasks, which are recorded as a separate change."""
    old, new = before.configuration.model_dump(mode="json"), after.configuration.model_dump(mode="json")
    changed = {name: [old[name], new[name]] for name in new if old[name] != new[name] and name not in NUMBERS}
    return [Change(kind="configuration", detail={"changed": changed, "version": after.version})] if changed else []
