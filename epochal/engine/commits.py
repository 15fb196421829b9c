"""E5 to E7: commit, publish and retain decided epochs, in the background of later epochs.

The queue holds prepared epochs in order. Each sink commits its epochs in order and independently of the other sinks, so
that an unavailable sink delays only its own commits; an epoch is published (E6) when all its sinks have committed and
every earlier epoch is published. An administrator may give up one sink's part (:meth:`CommitQueue.give_up`). A sink
whose target refuses a row (``RowRefused``) is *stopped*: further epochs open, and the other sinks commit them.
:meth:`CommitQueue.step` runs one round without threads; simulations call it directly, :class:`BackgroundCommits` calls
it from a thread.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from epochal.background.service import BackgroundService
from epochal.contracts.backend import DecidedEpoch, SinkBackend
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
"""Maximum number of epochs that other sinks commit while one sink is stopped by a refused row."""
STOPPED_RETRY_SECONDS = 5.0
SHOWN_TRANSACTIONS = 100
ABORT_COMMAND = "`epochal transaction abort {application} {sink} {epoch}` drops the epoch's rows in this sink alone."
"""Command that resolves a refused row without correcting it."""


@dataclass
class PreparedEpoch:
    """A decided epoch that is not yet published. ``open_sinks``: sinks that have not committed it.

    ``decided``, ``began``: times of the meter's clock; ``began`` is ``None`` if an earlier attempt opened the epoch.
    ``repeated``: of the epoch's :class:`Answers`.
    """

    scope: EpochScope
    manifest: Manifest
    open_sinks: set[str]
    decided: float = 0.0
    began: float | None = None
    repeated: Callable[[], bool] = field(default=lambda: True, compare=False)
    queued: float = 0.0
    """Seconds since ``decided`` in which earlier epochs were published and retained (E6, E7)."""

    def handles(self, sink: str) -> tuple[Handle, ...]:
        return self.manifest.sinks[sink].handles if sink in self.manifest.sinks else ()

    def part_of(self, sink: str, target: str, given_up: bool = False) -> DecidedEpoch:
        """The sink's part, without its rows if it is given up."""
        handles = () if given_up else self.handles(sink)
        return DecidedEpoch(self.scope, handles, self.manifest.previous_with_rows(target), given_up)


@dataclass(frozen=True)
class Waiting:
    """A sink that cannot commit, with the time and the reason."""

    sink: str
    since: datetime
    error: str
    refused: RowRefused | None = None
    """Set if the sink is stopped because its target refused a row."""

    def __str__(self) -> str:
        return f"waiting for sink {self.sink} since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.error}"


Retain = Callable[[PreparedEpoch], None]


@dataclass
class CommitQueue:
    """Queue of prepared epochs to commit. ``retain`` is E7, called once for each published epoch."""

    catalog: Catalog
    current: CurrentProgram
    retain: Retain = lambda epoch: None
    epochs: list[PreparedEpoch] = field(default_factory=list)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    to_give_up: set[tuple[str, int]] = field(default_factory=set)
    given_up: set[tuple[str, int]] = field(default_factory=set)
    hurried: bool = False
    flushing: bool = False
    """True while sinks that collect epochs must commit those they have."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    retaining: threading.Lock = field(default_factory=threading.Lock)
    """Held during E7, so that a reconfiguration does not replace the program."""
    meter: Meter = field(default_factory=Meter)
    abort_command: str = ABORT_COMMAND
    _next_try: dict[str, float] = field(default_factory=dict)
    """Time of the next attempt of a stopped sink, by the meter's clock."""

    def submit(
        self,
        scope: EpochScope,
        manifest: Manifest,
        began: float | None = None,
        repeated: Callable[[], bool] = lambda: True,
    ) -> None:
        """Add a prepared epoch; epochs are added in order."""
        with self.changed:
            sinks = set(self._participants.sinks)
            self.epochs.append(PreparedEpoch(scope, manifest, sinks, self.meter.clock(), began, repeated))
            self.changed.notify_all()

    def is_open(self, sink: str, epoch: int) -> bool:
        """True if the sink's part of the epoch is decided and not committed."""
        return any(item.scope.epoch == epoch and sink in item.open_sinks for item in self.epochs)

    def hurry(self) -> None:
        """Retry now, without waiting for the back-off."""
        with self.changed:
            self.hurried = True
            self._next_try.clear()
            self.changed.notify_all()

    def flush(self) -> None:
        """Commit the epochs that sinks collect, until none is left."""
        if not self.flushing and any(backend.buffering for backend in self._participants.sinks.values()):
            self.flushing = True
            self.hurry()

    def give_up(self, sink: str, epoch: int) -> None:
        """Commit the epoch in this sink without its rows, then remove the rows. Done when :meth:`is_open` is false."""
        self.to_give_up.add((sink, epoch))
        self.hurry()

    def was_given_up(self, sink: str, epoch: int) -> bool:
        """True if a closed epoch was abandoned in this sink; false if it was committed before the order took effect."""
        self.to_give_up.discard((sink, epoch))
        return (sink, epoch) in self.given_up

    def transactions(self) -> tuple[OpenTransaction, ...]:
        """Decided and uncommitted parts of epochs, by epoch and sink."""
        items = [(epoch, sink) for epoch in list(self.epochs) for sink in sorted(epoch.open_sinks)]
        return tuple(self._transaction(epoch, sink) for epoch, sink in items[:SHOWN_TRANSACTIONS])

    @property
    def has_room(self) -> bool:
        """False while the maximum number of epochs is prepared and uncommitted; then no further epoch may open."""
        epochs = list(self.epochs)
        held = [epoch for epoch in epochs if not self._is_held_back(epoch)]
        ahead = self.current.program.configuration.epochs_ahead_of_commits
        behind = Counter(sink for epoch in epochs for sink in tuple(epoch.open_sinks))
        return len(held) < ahead and all(number < self._most_epochs(sink) + ahead for sink, number in behind.items())

    @property
    def settled(self) -> bool:
        """True if every epoch is committed, except in stopped sinks."""
        return all(epoch.open_sinks and self._is_stopped(epoch) for epoch in list(self.epochs))

    def check_refused(self) -> None:
        """Raises the ``RowRefused`` that stops a sink, with the command that resolves it."""
        for waiting in list(self.waiting.values()):
            if waiting.refused is not None:
                raise RowRefused(f"Sink {waiting.sink!r} is stopped: {waiting.error}") from waiting.refused

    def _most_epochs(self, sink: str) -> int:
        """Maximum number of epochs that wait for a sink while it is stopped, or collects them."""
        buffering = self._participants.sinks[sink].buffering
        if self._is_refused(sink) or buffering is None:
            return EPOCHS_BEHIND_A_STOPPED_SINK
        return buffering.most_epochs

    def _is_held_back(self, epoch: PreparedEpoch) -> bool:
        """True if the epoch waits only for stopped sinks, and for sinks that collect it."""
        return bool(epoch.open_sinks) and all(
            self._is_refused(sink) if sink in self.waiting else self._is_collecting(sink)
            for sink in tuple(epoch.open_sinks)
        )

    def _is_collecting(self, sink: str) -> bool:
        """True if epochs of the sink wait for its interval."""
        return self._participants.sinks[sink].buffering is not None and not self.flushing

    def _is_refused(self, sink: str) -> bool:
        """True if a refused row stops the sink."""
        waiting = self.waiting.get(sink)
        return waiting is not None and waiting.refused is not None

    def _is_stopped(self, epoch: PreparedEpoch) -> bool:
        """True if the epoch waits only for stopped sinks."""
        return all(map(self._is_refused, tuple(epoch.open_sinks)))

    @property
    def empty(self) -> bool:
        return not self.epochs

    @property
    def _participants(self) -> Participants:
        return self.current.program.participants

    def step(self) -> bool:
        """Run one round over all sinks and epochs. Returns true if it made progress. Raises ``Fenced``."""
        progress = False
        for sink in self._participants.sinks:
            progress |= self._commit_sink(sink)
        if not any(epoch.open_sinks for epoch in self.epochs):
            self.flushing = False
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
        open_epochs = [epoch for epoch in self.epochs if sink in epoch.open_sinks]
        if backend.buffering is not None:
            return self._commit_collected(backend, sink, open_epochs)
        for epoch in open_epochs:
            with about(epoch=epoch.scope.epoch):
                if not self._try_to_commit(backend, sink, epoch):
                    break
            progress = True
        return progress

    def _commit_collected(self, backend: SinkBackend, sink: str, epochs: Sequence[PreparedEpoch]) -> bool:
        """Commit all epochs that the sink has collected, in one call, if it is time."""
        if not epochs or not self._is_due(backend, sink, epochs):
            return False
        last = epochs[-1]
        with about(epoch=last.scope.epoch):
            return self._try_to_commit(backend, sink, last, epochs)

    def _is_due(self, backend: SinkBackend, sink: str, epochs: Sequence[PreparedEpoch]) -> bool:
        limits = backend.buffering
        if limits is None or self.flushing or len(epochs) >= limits.most_epochs or sink in self.waiting:
            return True
        if any((sink, epoch.scope.epoch) in self.to_give_up for epoch in epochs):
            return True
        staged = sum(handle.bytes for epoch in epochs for handle in epoch.handles(sink))
        return staged >= limits.most_bytes or self.meter.clock() - epochs[0].decided >= limits.seconds

    def _try_to_commit(
        self, backend: SinkBackend, sink: str, last: PreparedEpoch, epochs: Sequence[PreparedEpoch] | None = None
    ) -> bool:
        """Commit an epoch, or several up to and including ``last``."""
        epochs = epochs or [last]
        points.E5_BEFORE_SINK.hit(last.scope.epoch)
        try:
            self._commit(backend, sink, epochs)
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001  the epochs are decided, so any error is retried later
            self._note_waiting(sink, epochs[0], error)
            return False
        self.waiting.pop(sink, None)
        for epoch in epochs:
            epoch.open_sinks.discard(sink)
            self.meter.committed(sink, self.meter.clock() - epoch.decided)
            log.info("E5 commit: epoch %s, sink %s", epoch.scope.key, sink)
        points.E5_SINK_COMMITTED.hit(last.scope.epoch)
        return True

    def _commit(self, backend: SinkBackend, sink: str, epochs: Sequence[PreparedEpoch]) -> None:
        given_up = [epoch for epoch in epochs if (sink, epoch.scope.epoch) in self.to_give_up]
        # An epoch that is given up commits without rows first, so that the target's mark advances; only then the rows
        # may be removed.
        backend.commit_decided([epoch.part_of(sink, backend.target, epoch in given_up) for epoch in epochs])
        for epoch in given_up:
            points.E5_GIVEN_UP.hit(epoch.scope.epoch)
            backend.abort(epoch.scope, epoch.handles(sink))
            self.given_up.add((sink, epoch.scope.epoch))
            log.warning("E5 commit: epoch %s, sink %s was abandoned by an administrator", epoch.scope.key, sink)

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
        published_from = self.meter.clock()
        commits = published_from - epoch.decided
        self.meter.took("E5", commits, number)
        with self.meter.step("E6", number):
            self.catalog.commit_epoch(number)
            points.E6_PUBLISHED.hit(number)
            for name, source in self._participants.sources.items():
                # An epoch of an earlier version may have read a source that this version does not have.
                if name in epoch.manifest.slices:
                    source.acknowledge(epoch.manifest.slices[name])
            points.E6_ACKNOWLEDGED.hit(number)
        if epoch.began is not None:
            in_sinks = commits - epoch.queued if epoch.manifest.sinks else 0.0
            self.meter.published(self.meter.clock() - epoch.began, number, in_sinks)
        log.info("E6 publish: epoch %s is committed", epoch.scope.key)
        with self.changed:
            self.epochs.remove(epoch)
            self.changed.notify_all()
        points.E7_BEFORE.hit(number)
        with self.retaining, self.meter.step("E7", number):
            self.retain(epoch)
        for later in list(self.epochs):
            later.queued += max(0.0, self.meter.clock() - max(published_from, later.decided))


class BackgroundCommits:
    """Runs rounds of a queue in a thread, with exponential back-off without progress."""

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
        """Stop after the current round. The next attempt commits the remaining epochs (R3)."""
        self._service.stop(timeout=None)

    def check(self) -> None:
        """Raise the error that ended the thread: ``Fenced``, or a defect."""
        if self.failure is not None:
            raise self.failure

    def wait(self, until: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until ``until()`` is true. Raises the error that ended the thread."""
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
    """R3: run rounds until the queue is settled, with back-off while a sink cannot commit."""
    wait = 0.1
    queue.flush()
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
    """Repeat ``call`` with back-off while the sink's server is unavailable, before a queue exists."""
    since, wait = datetime.now(UTC), 0.1
    while True:
        try:
            return call()
        except SinkUnavailable as error:
            note([Waiting(sink, since, str(error))])
            log.warning("sink %s is not available yet: %s", sink, error)
        pause(wait)
        wait = min(wait * 2, 5.0)
