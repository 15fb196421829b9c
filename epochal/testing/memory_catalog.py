"""A catalog in memory, with the guards of the real one: for tests and simulations that need no database.

One :class:`MemoryCatalogState` is the database; each attempt has a :class:`MemoryCatalog` on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from epochal.contracts.catalog import (
    AS_THE_EXECUTION,
    Catalog,
    Directive,
    DriverStatus,
    EpochCounts,
    EpochRecord,
    EpochTerms,
    Failure,
    ManifestReference,
    OptimizeResult,
    RecoveryPoint,
)
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import Event, State, advance
from epochal.errors import Conflict, Fenced


@dataclass
class MemoryCatalogState:
    """The rows of a branch, shared by all attempts."""

    application: str = "application"
    branch: str = "main"
    forked_from: ManifestReference | None = None
    attempt: int = 0
    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    directives: dict[str, Directive] = field(default_factory=dict)
    completed: dict[str, ManifestReference | None] = field(default_factory=dict)
    finished: dict[int, Failure | None] = field(default_factory=dict)
    status: DriverStatus | None = None

    @property
    def decided(self) -> list[EpochRecord]:
        """Prepared and committed epochs, in order."""
        return [self.epochs[n] for n in sorted(self.epochs) if self.epochs[n].state in ("prepared", "committed")]

    @property
    def head(self) -> ManifestReference | None:
        return self.decided[-1].manifest if self.decided else self.forked_from


@dataclass
class MemoryCatalog(Catalog):
    """A catalog of one attempt. ``lose(call, landed)`` is called before and after the effect of each write; it can
    raise ``OutcomeUnknown``."""

    state: MemoryCatalogState
    attempt: int
    lose: Callable[[str, bool], None] = lambda call, landed: None

    def begin_attempt(self) -> RecoveryPoint:
        if self.state.attempt > self.attempt:
            raise Fenced(f"Attempt {self.state.attempt} has taken over from attempt {self.attempt}.")
        self.state.attempt = self.attempt
        rows = [self.state.epochs[n] for n in sorted(self.state.epochs)]
        return RecoveryPoint(
            application=self.state.application,
            branch=self.state.branch,
            attempt=self.attempt,
            head=self.state.head,
            prepared=[row for row in rows if row.state == "prepared"],
            started=[row for row in rows if row.state == "started"],
            next_epoch=max(self.state.epochs, default=0) + 1,
        )

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        self.lose("open", False)
        before = self.state.epochs.get(epoch)
        if before is None or before.attempt != self.attempt:
            self._guard()
        head = self.state.head
        if parent != (head.key if head else None):
            raise Conflict(f"Epoch {epoch} builds on {parent}, but the latest prepared epoch is {head and head.key}.")
        advance(State(before.state) if before else None, Event.OPEN)
        self.state.epochs[epoch] = EpochRecord(
            branch=self.state.branch,
            epoch=epoch,
            attempt=self.attempt,
            state="started",
            parent=parent,
            started_at=datetime.now(UTC),
        )
        self.lose("open", True)

    def prepare_epoch(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms = AS_THE_EXECUTION,
    ) -> None:
        self.lose("prepare", False)
        row = self.state.epochs[epoch]
        if row.manifest == manifest:
            return
        self._guard()
        if row.attempt != self.attempt or row.parent != parent:
            raise Conflict(f"Epoch {row.key} was opened by attempt {row.attempt} on {row.parent}.")
        state = advance(State(row.state), Event.PREPARE)
        update = {
            "state": state.value,
            "manifest": manifest,
            "prepared_at": datetime.now(UTC),
            "version": terms.version,
            "changes": terms.changes,
            "opened_for": terms.opened_for,
            "watermarks": terms.watermarks,
            "next_due": terms.next_due,
            **counts.model_dump(),
        }
        self.state.epochs[epoch] = row.model_copy(update=update)
        self.lose("prepare", True)

    def commit_epoch(self, epoch: int) -> None:
        self.lose("commit", False)
        self._guard()
        row = self.state.epochs[epoch]
        earlier = [n for n, other in self.state.epochs.items() if n < epoch and other.state == "prepared"]
        if earlier:
            raise Conflict(f"Epoch {row.key} cannot be committed before epochs {earlier}.")
        state = advance(State(row.state), Event.PUBLISH)
        self.state.epochs[epoch] = row.model_copy(update={"state": state.value, "committed_at": datetime.now(UTC)})
        self.lose("commit", True)

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        self.lose("abort", False)
        self._guard()
        row = self.state.epochs[epoch]
        if row.state in ("prepared", "committed"):
            raise Conflict(f"Epoch {row.key} is {row.state}: it is decided and cannot be aborted.")
        state = advance(State(row.state), Event.ABORT)
        self.state.epochs[epoch] = row.model_copy(update={"state": state.value, "failure": failure})
        self.lose("abort", True)

    def epoch(self, epoch: int) -> EpochRecord | None:
        return self.state.epochs.get(epoch)

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        self._guard()
        self.state.status = status
        return list(self.state.directives.values())

    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        self._guard()
        self.state.directives.pop(directive, None)
        self.state.completed[directive] = head

    def finish(self, failure: Failure | None) -> None:
        self._guard()
        self.state.finished[self.attempt] = failure

    def _guard(self) -> None:
        if self.state.attempt > self.attempt:
            raise Fenced(f"Attempt {self.state.attempt} has taken over from attempt {self.attempt}.")
