"""E5 to E7: what happens to an epoch after it was decided, in the background of later epochs.

The queue holds prepared epochs in order. Each sink commits its epochs in order and independently of the other sinks, so
that a sink that is down holds back only its own commits; an epoch is published (E6) when all its sinks are done and
every earlier epoch is published. An administrator may give one sink's part up (:meth:`CommitQueue.give_up`). A sink
whose target refuses a row (``RowRefused``) is *stopped*: further epochs open, and the other sinks commit them.
:meth:`CommitQueue.step` does one round without threads: simulation calls it directly, :class:`BackgroundCommits` calls
it from a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from epochal.background.service import BackgroundService
from epochal.contracts.backend import SinkBackend
from epochal.contracts.catalog import Catalog, OpenTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.engine import points
from epochal.engine.job import Participants
from epochal.engine.meter import Meter
from epochal.engine.program import CurrentProgram
from epochal.errors import Fenced, RowRefused, SinkUnavailable
from epochal.logs import about
from epochal.snapshots.manifest import Manifest

log = logging.getLogger(__name__)

EPOCHS_BEHIND_A_STOPPED_SINK = 1_000
"""Epochs that the other sinks commit while one is stopped by a refused row."""
STOPPED_RETRY_SECONDS = 5.0
SHOWN_TRANSACTIONS = 100
ABORT_COMMAND = "`epochal transaction abort {application} {sink} {epoch}` drops the epoch's rows in this sink alone."
"""How a refused row is resolved without correcting it."""


@dataclass
class PreparedEpoch:
    """An epoch that is decided and not yet published. ``open_sinks`` have not committed it yet.

    ``decided``, ``began``: by the meter's clock; ``None`` for when it was opened by an earlier attempt.
    """

    scope: EpochScope
    manifest: Manifest
    open_sinks: set[str]
    decided: float = 0.0
    began: float | None = None

    def handles(self, sink: str) -> tuple[Handle, ...]:
        return self.manifest.sinks[sink].handles if sink in self.manifest.sinks else ()


@dataclass(frozen=True)
class Waiting:
    """A sink that cannot commit: since when, and why."""

    sink: str
    since: datetime
    error: str
    refused: RowRefused | None = None
    """The sink is stopped: its target refuses a row."""

    def __str__(self) -> str:
        return f"waiting for sink {self.sink} since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.error}"


Retain = Callable[[PreparedEpoch], None]


@dataclass
class CommitQueue:
    """Prepared epochs on their way to committed. ``retain`` is E7, called once for each published epoch."""

    catalog: Catalog
    current: CurrentProgram
    retain: Retain = lambda epoch: None
    epochs: list[PreparedEpoch] = field(default_factory=list)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    to_give_up: set[tuple[str, int]] = field(default_factory=set)
    given_up: set[tuple[str, int]] = field(default_factory=set)
    hurried: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)
    retaining: threading.Lock = field(default_factory=threading.Lock)
    """Held while an epoch is retained: a reconfiguration may not put another program in place meanwhile."""
    meter: Meter = field(default_factory=Meter)
    abort_command: str = ABORT_COMMAND
    _next_try: dict[str, float] = field(default_factory=dict)
    """When a stopped sink commits again, by the meter's clock."""

    def submit(self, scope: EpochScope, manifest: Manifest, began: float | None = None) -> None:
        """Queue an epoch that has been prepared; epochs come in order."""
        with self.changed:
            sinks = set(self._participants.sinks)
            self.epochs.append(PreparedEpoch(scope, manifest, sinks, self.meter.clock(), began))
            self.changed.notify_all()

    def is_open(self, sink: str, epoch: int) -> bool:
        """Is the sink's part of the epoch decided and not committed?"""
        return any(item.scope.epoch == epoch and sink in item.open_sinks for item in self.epochs)

    def hurry(self) -> None:
        """Try again now, whatever the back-off."""
        with self.changed:
            self.hurried = True
            self._next_try.clear()
            self.changed.notify_all()

    def give_up(self, sink: str, epoch: int) -> None:
        """Commit the epoch in this sink without its rows, which are then removed. Over when it is no longer open."""
        self.to_give_up.add((sink, epoch))
        self.hurry()

    def was_given_up(self, sink: str, epoch: int) -> bool:
        """Of an epoch that is no longer open: or did it commit as any other, before that was seen?"""
        self.to_give_up.discard((sink, epoch))
        return (sink, epoch) in self.given_up

    def transactions(self) -> tuple[OpenTransaction, ...]:
        """What is decided and not committed, by epoch and sink."""
        items = [(epoch, sink) for epoch in list(self.epochs) for sink in sorted(epoch.open_sinks)]
        return tuple(self._transaction(epoch, sink) for epoch, sink in items[:SHOWN_TRANSACTIONS])

    @property
    def has_room(self) -> bool:
        """False while as many epochs as may be are prepared and not committed: then no further one may be opened."""
        held = [epoch for epoch in list(self.epochs) if not epoch.open_sinks or not self._is_stopped(epoch)]
        ahead = self.current.program.configuration.epochs_ahead_of_commits
        return len(held) < ahead and len(self.epochs) < EPOCHS_BEHIND_A_STOPPED_SINK + ahead

    @property
    def settled(self) -> bool:
        """Every epoch is committed, except in sinks that are stopped."""
        return all(epoch.open_sinks and self._is_stopped(epoch) for epoch in list(self.epochs))

    def check_refused(self) -> None:
        """Raises the ``RowRefused`` that stops a sink, with the command that resolves it."""
        for waiting in list(self.waiting.values()):
            if waiting.refused is not None:
                raise RowRefused(f"Sink {waiting.sink!r} is stopped: {waiting.error}") from waiting.refused

    def _is_stopped(self, epoch: PreparedEpoch) -> bool:
        """Whether the epoch waits for stopped sinks alone."""
        waiting = self.waiting
        return all(sink in waiting and waiting[sink].refused is not None for sink in tuple(epoch.open_sinks))

    @property
    def empty(self) -> bool:
        return not self.epochs

    @property
    def _participants(self) -> Participants:
        return self.current.program.participants

    def step(self) -> bool:
        """One round over all sinks and epochs. True when something was done. Raises ``Fenced``."""
        progress = False
        for sink in self._participants.sinks:
            progress |= self._commit_sink(sink)
        while self.epochs and not self.epochs[0].open_sinks:
            with about(epoch=self.epochs[0].scope.epoch):
                self._publish(self.epochs[0])
            progress = True
        return progress

    def _commit_sink(self, sink: str) -> bool:
        progress = False
        if self._next_try.get(sink, 0.0) > self.meter.clock():
            return False
        backend = self._participants.sinks[sink]
        for epoch in [epoch for epoch in self.epochs if sink in epoch.open_sinks]:
            with about(epoch=epoch.scope.epoch):
                if not self._try_to_commit(backend, sink, epoch):
                    break
            progress = True
        return progress

    def _try_to_commit(self, backend: SinkBackend, sink: str, epoch: PreparedEpoch) -> bool:
        points.E5_BEFORE_SINK.hit(epoch.scope.epoch)
        try:
            self._commit(backend, sink, epoch)
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001  whatever a sink raises: the decision stands, so try again later
            self._note_waiting(sink, epoch, error)
            return False
        self.waiting.pop(sink, None)
        epoch.open_sinks.discard(sink)
        self.meter.committed(sink, self.meter.clock() - epoch.decided)
        log.info("E5 commit: epoch %s, sink %s", epoch.scope.key, sink)
        points.E5_SINK_COMMITTED.hit(epoch.scope.epoch)
        return True

    def _commit(self, backend: SinkBackend, sink: str, epoch: PreparedEpoch) -> None:
        if (sink, epoch.scope.epoch) not in self.to_give_up:
            backend.commit(epoch.scope, epoch.handles(sink))
            return
        # As an epoch without rows, so that the target's own mark moves on; only then its rows may go.
        backend.commit(epoch.scope, ())
        points.E5_GIVEN_UP.hit(epoch.scope.epoch)
        backend.abort(epoch.scope, epoch.handles(sink))
        self.given_up.add((sink, epoch.scope.epoch))
        log.warning("E5 commit: epoch %s, sink %s was given up by an administrator", epoch.scope.key, sink)

    def _transaction(self, epoch: PreparedEpoch, sink: str) -> OpenTransaction:
        waiting = self.waiting.get(sink)
        return OpenTransaction(
            sink=sink,
            epoch=epoch.scope.epoch,
            rows=sum(handle.rows for handle in epoch.handles(sink)),
            error=waiting.error if waiting else None,
            since=waiting.since if waiting else None,
        )

    def _note_waiting(self, sink: str, epoch: PreparedEpoch, error: Exception) -> None:
        before = self.waiting.get(sink)
        since = before.since if before else datetime.now(UTC)
        text, refused = str(error), error if isinstance(error, RowRefused) else None
        if refused is not None:
            scope = epoch.scope
            text += " " + self.abort_command.format(application=scope.application, sink=sink, epoch=scope.epoch)
            self._next_try[sink] = self.meter.clock() + STOPPED_RETRY_SECONDS
        self.waiting[sink] = Waiting(sink, since, text, refused)
        if before is None or before.error != text:
            log.warning("E5 commit: epoch %s, sink %s cannot commit yet: %s", epoch.scope.key, sink, text)

    def _publish(self, epoch: PreparedEpoch) -> None:
        number = epoch.scope.epoch
        points.E6_BEFORE.hit(number)
        self.meter.took("E5", self.meter.clock() - epoch.decided)
        with self.meter.step("E6"):
            self.catalog.commit_epoch(number)
            points.E6_PUBLISHED.hit(number)
            for name, source in self._participants.sources.items():
                # An epoch of an earlier version may have read a source that this one does not have.
                if name in epoch.manifest.slices:
                    source.acknowledge(epoch.manifest.slices[name])
            points.E6_ACKNOWLEDGED.hit(number)
        if epoch.began is not None:
            self.meter.published(self.meter.clock() - epoch.began)
        log.info("E6 publish: epoch %s is committed", epoch.scope.key)
        with self.changed:
            self.epochs.remove(epoch)
            self.changed.notify_all()
        points.E7_BEFORE.hit(number)
        with self.retaining, self.meter.step("E7"):
            self.retain(epoch)


class BackgroundCommits:
    """Runs a queue's rounds in a thread, with exponential back-off while nothing moves."""

    def __init__(self, queue: CommitQueue, first_wait_seconds: float = 0.1, longest_wait_seconds: float = 5.0) -> None:
        self.queue = queue
        self.failure: BaseException | None = None
        self._first_wait = first_wait_seconds
        self._longest_wait = longest_wait_seconds
        self._pause = first_wait_seconds
        self._service = BackgroundService("epochal-commits", self._step, 0.0, wake=self._notify)

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        """Stop after the round under way; what is still queued is redone by the next attempt (R3)."""
        self._service.stop(timeout=None)

    def check(self) -> None:
        """Raise what ended the thread: ``Fenced``, or a defect."""
        if self.failure is not None:
            raise self.failure

    def wait(self, until: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait for the queue to change until ``until()`` holds. Raises what ended the thread."""
        with self.queue.changed:
            held = self.queue.changed.wait_for(lambda: self.failure is not None or until(), timeout_seconds)
        self.check()
        return held

    def _notify(self) -> None:
        with self.queue.changed:
            self.queue.changed.notify_all()

    def _step(self) -> None:
        """One round of the queue. Waits on the queue's condition, so that a decided epoch is taken up immediately."""
        try:
            progress = self.queue.step()
        except BaseException as error:  # noqa: BLE001  the loop's thread raises it
            self.failure = error
            self._service.stop()
            return
        self._pause = self._first_wait if progress else min(self._pause * 2, self._longest_wait)
        with self.queue.changed:
            if self.queue.hurried:
                self.queue.hurried = False
                self._pause = self._first_wait
            elif self.queue.empty:
                self.queue.changed.wait_for(lambda: self._service.stopping or not self.queue.empty)
                self._pause = self._first_wait
            elif not progress:
                self.queue.changed.wait_for(lambda: self._service.stopping or self.queue.hurried, self._pause)


def drain(queue: CommitQueue, pause: Callable[[float], None], note: Callable[[Sequence[Waiting]], None]) -> None:
    """R3: rounds until the queue is settled, with back-off while a sink cannot commit."""
    wait = 0.1
    while not queue.settled:
        if queue.step():
            wait = 0.1
            continue
        note(list(queue.waiting.values()))
        pause(wait)
        wait = min(wait * 2, 5.0)


def until_available(
    sink: str, call: Callable[[], None], pause: Callable[[float], None], note: Callable[[Sequence[Waiting]], None]
) -> None:
    """Before there is a queue: ``call``, again and again while the sink's server is down, with back-off."""
    since, wait = datetime.now(UTC), 0.1
    while True:
        try:
            return call()
        except SinkUnavailable as error:
            note([Waiting(sink, since, str(error))])
            log.warning("sink %s is not available yet: %s", sink, error)
        pause(wait)
        wait = min(wait * 2, 5.0)
