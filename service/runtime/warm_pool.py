"""Warm pools: processes and pods that have started Spark before work arrives for them.

:func:`decide` and :class:`StartSchedule` decide which workers a pool starts, retains and retires, by age, number and
key; they have no effects. :class:`WarmPool` carries the decisions out with a :class:`WarmLauncher`: of processes and of
pods that become drivers, of pods that build, of forked children of a builder.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from epochal.background.service import BackgroundService
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.machine import steady_seconds

log = logging.getLogger("epochal.spares")

Key = TypeVar("Key", bound=Hashable)
Worker = TypeVar("Worker")
Claim = TypeVar("Claim")

STEP_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 300.0
_CPU_TIMES = Path("/proc/stat")


@dataclass(frozen=True)
class PoolTimes:
    """Times in seconds. ``retired``: maximum age. ``ready``: timeout for becoming ready. ``answer``: timeout for the
    answer of a ready worker when it is taken. ``quiet``: minimum time since the last request before another worker is
    started; ``busy``: the same time on a busy machine. ``pause``: minimum time between two starts; it doubles with each
    start whose worker does not become ready."""

    retired: float = 3600.0
    ready: float = 600.0
    answer: float = 2.0
    quiet: float = 5.0
    busy: float = 30.0
    pause: float = 2.0


@dataclass(frozen=True)
class Member(Generic[Key]):
    """The properties of a worker on which decisions depend."""

    key: Key
    age_seconds: float
    is_ready: bool


@dataclass(frozen=True)
class Decision(Generic[Key]):
    """``retired``: reasons by position of the member. ``start``: key of the worker to start; ``None``: start none."""

    retired: dict[int, str]
    start: Key | None


def why_over(times: PoolTimes, age_seconds: float, is_ready: bool) -> str | None:
    """The reason why a worker of this age is no longer handed out; ``None`` if it still is."""
    if not is_ready and age_seconds > times.ready:
        return "is not ready in time"
    return "has reached its maximum age" if age_seconds >= times.retired else None


def target_keys(requested: Sequence[Key], usual: Key, places: int) -> list[Key]:
    """One key for each place: the most recently requested keys, repeated in turn; without requests, the usual key."""
    keys = requested or [usual]
    return [keys[place % len(keys)] for place in range(places)]


def decide(members: Sequence[Member[Key]], targets: Sequence[Key], times: PoolTimes) -> Decision[Key]:
    """Retire workers that have expired, and workers in excess of the places of their key; start one that is missing.

    Of several workers with one key, ready ones are retained first, then older ones.
    """
    retired = {
        position: why
        for position, member in enumerate(members)
        if (why := why_over(times, member.age_seconds, member.is_ready)) is not None
    }
    missing = Counter(targets)
    others = [position for position in range(len(members)) if position not in retired]
    for position in sorted(others, key=lambda each: (not members[each].is_ready, -members[each].age_seconds)):
        if missing[members[position].key] > 0:
            missing[members[position].key] -= 1
        else:
            retired[position] = "has a key that other requests have replaced"
    return Decision(retired, next((key for key in targets if missing[key] > 0), None))


class Idleness:
    """Processor idle time of this machine between two calls."""

    def __init__(self) -> None:
        self._before = (0, 0)

    def is_quiet(self) -> bool:
        """``True`` if at least half of the time since the last call was idle, or if the system does not report it."""
        try:
            times = [int(text) for text in _CPU_TIMES.read_text().partition("\n")[0].split()[1:9]]
        except OSError:
            return True
        idle, total = times[3] + times[4], sum(times)
        (idle_before, total_before), self._before = self._before, (idle, total)
        return total > total_before and 2 * (idle - idle_before) >= total - total_before


class StartSchedule:
    """Decides when another worker may be started, from the life-cycle events of a pool."""

    def __init__(self, times: PoolTimes, is_quiet: Callable[[], bool], immediately: bool = False) -> None:
        """``is_quiet``: returns ``True`` if the machine was idle since the last call. ``immediately``: do not wait
        before the first start."""
        self._times = times
        self._is_quiet = is_quiet
        self._requested_at = -math.inf if immediately else steady_seconds()
        self._pause = times.pause
        self._not_before = 0.0

    def requested(self) -> None:
        """Record that a caller has requested a worker, and begins to work with or without one."""
        self._requested_at = steady_seconds()
        self._pause = self._times.pause

    def started(self) -> None:
        self._not_before = steady_seconds() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def became_ready(self) -> None:
        self._pause = self._times.pause

    def may_start(self) -> bool:
        is_quiet = self._is_quiet()  # called unconditionally: it measures the time since the last call
        now = steady_seconds()
        since = now - self._requested_at
        if now < self._not_before or since < self._times.quiet:
            return False
        return is_quiet or since >= self._times.busy


class WarmLauncher(ABC, Generic[Key, Worker]):
    """Starts and stops the workers of a pool. ``kind``: their name in the log."""

    kind: str
    hands_out_unready = True
    """``True`` if a worker that is not ready yet may be taken: it is preferred to a cold start."""

    @abstractmethod
    def start(self, key: Key) -> Worker:
        """Start a worker. Returns before it is ready. Raises an error of the launcher; the pool retries later."""

    @abstractmethod
    def is_ready(self, worker: Worker) -> bool:
        """``True`` once the worker has reported that it is ready. Does not block."""

    @abstractmethod
    def why_ended(self, worker: Worker) -> str | None:
        """The reason why the worker has terminated; ``None`` while it runs, as far as is known. Does not block."""

    @abstractmethod
    def stop(self, worker: Worker, kill: bool = False) -> None:
        """Terminate the worker and remove its files. ``kill``: immediately. Never raises."""

    def became_ready(self, worker: Worker) -> None:
        """Called once for each worker that has become ready. May block for a second."""

    def memory_bytes(self, worker: Worker) -> int:
        return 0


@dataclass(eq=False)
class _Held(Generic[Key, Worker]):
    key: Key
    worker: Worker
    started_at: float
    is_ready: bool = False

    @property
    def member(self) -> Member[Key]:
        return Member(self.key, steady_seconds() - self.started_at, self.is_ready)


class WarmPool(Generic[Key, Worker]):
    """Holds ``places`` workers for the most recently requested keys. A worker that was taken belongs to the caller."""

    def __init__(
        self,
        launcher: WarmLauncher[Key, Worker],
        places: int,
        usual: Callable[[], Key],
        times: PoolTimes = PoolTimes(),
        is_quiet: Callable[[], bool] = lambda: True,
        immediately: bool = True,
    ) -> None:
        """``usual``: the key before the first request. ``immediately``: start the first worker without waiting, since
        applications are often submitted right after a control plane has started."""
        self.leads: Callable[[], bool] = lambda: True
        """Hold workers only while it returns ``True``."""
        self.times = times
        self._launcher = launcher
        self._places = places
        self._usual = usual
        self._schedule = StartSchedule(times, is_quiet, immediately)
        self._held: list[_Held[Key, Worker]] = []
        self._requested: list[Key] = []
        self._warmed_seconds: float | None = None
        self._taken = self._cold = 0
        self._lock = threading.Lock()
        self._closed = False
        self._service = BackgroundService(f"warm {launcher.kind}s", self.step, STEP_SECONDS, delay=STEP_SECONDS)

    def open(self) -> None:
        """Start the thread that runs :meth:`step`."""
        if self._places:
            self._service.start()

    def close(self) -> None:
        """Stop all workers of the pool; workers that were taken continue."""
        self._closed = True
        self._service.stop()
        self.stop_all()

    @property
    def workers(self) -> list[Worker]:
        with self._lock:
            return [held.worker for held in self._held]

    @property
    def readiness(self) -> list[tuple[Worker, bool]]:
        with self._lock:
            return [(held.worker, held.is_ready) for held in self._held]

    @property
    def figures(self) -> SpareFigures:
        with self._lock:
            held, taken, cold = list(self._held), self._taken, self._cold
        ready = sum(each.is_ready for each in held)
        return SpareFigures(
            limit=self._places,
            ready=ready,
            warming=len(held) - ready,
            bytes=sum(self._launcher.memory_bytes(each.worker) for each in held),
            warmed_seconds=self._warmed_seconds,
            taken=taken,
            cold=cold,
        )

    def postpone(self) -> None:
        """Record that a caller begins work for which no worker is suitable: no worker is started until the machine is
        idle again."""
        with self._lock:
            self._schedule.requested()

    def take(self, key: Key, claim: Callable[[Worker], Claim | None]) -> Claim | None:
        """Hand out a worker: ready ones first, then the oldest. ``None`` if no worker is available.

        ``claim`` returns the result for the caller; ``None`` replaces the worker by the next one. Exceptions of
        ``claim`` are raised, and the worker then belongs to the caller.
        """
        with self._lock:
            self._schedule.requested()
            self._requested = [key, *(each for each in self._requested if each != key)][: self._places]
        self._refresh()
        for held in self._candidates(key):
            if not self._remove(held):
                continue
            if self._launcher.why_ended(held.worker) is not None:
                self._launcher.stop(held.worker)
                continue
            claimed = claim(held.worker)
            if claimed is not None:
                with self._lock:
                    self._taken += 1
                return claimed
            log.warning("the warm %s %s does not answer and is replaced", self._launcher.kind, held.worker)
            self._launcher.stop(held.worker, kill=True)
        with self._lock:
            self._cold += 1
        return None

    def stop_all(self) -> int:
        """Stop all workers. Returns their number."""
        with self._lock:
            held, self._held = self._held, []
        for each in held:
            self._launcher.stop(each.worker)
        return len(held)

    def step(self) -> None:
        """One round: record workers that have become ready or have ended, retire, start."""
        if not self.leads():
            self.stop_all()
            return
        self._refresh()
        with self._lock:
            held, targets = list(self._held), target_keys(self._requested, self._usual(), self._places)
        for each in list(held):
            if (why := self._launcher.why_ended(each.worker)) is not None:
                held.remove(each)
                self._retire(each, f"has ended: {why}", logging.WARNING)
        decision = decide([each.member for each in held], targets, self.times)
        for position, why in decision.retired.items():
            self._retire(held[position], why, logging.INFO if held[position].is_ready else logging.WARNING)
        if decision.start is not None and not self._closed and self._schedule.may_start():
            self._start(decision.start)

    def _start(self, key: Key) -> None:
        self._schedule.started()
        held = _Held(key, self._launcher.start(key), steady_seconds())
        with self._lock:
            self._held.append(held)

    def _refresh(self) -> None:
        with self._lock:  # only workers in the pool: the messages of a taken worker have another meaning
            ready = [held for held in self._held if not held.is_ready and self._launcher.is_ready(held.worker)]
            for held in ready:
                held.is_ready = True
        for held in ready:
            self._schedule.became_ready()
            self._warmed_seconds = steady_seconds() - held.started_at
            kind, worker = self._launcher.kind, held.worker
            log.info("the warm %s %s is ready, %.1f s after its start", kind, worker, self._warmed_seconds)
            self._launcher.became_ready(worker)

    def _candidates(self, key: Key) -> list[_Held[Key, Worker]]:
        with self._lock:
            fitting = [held for held in self._held if held.key == key]
        fitting = [
            held
            for held in fitting
            if (held.is_ready or self._launcher.hands_out_unready)
            and why_over(self.times, held.member.age_seconds, held.is_ready) is None
        ]
        return sorted(fitting, key=lambda held: (not held.is_ready, held.started_at))

    def _remove(self, held: _Held[Key, Worker]) -> bool:
        """Remove a worker from the pool; ``False`` if another caller has taken it."""
        with self._lock:
            if held not in self._held:
                return False
            self._held.remove(held)
        return True

    def _retire(self, held: _Held[Key, Worker], why: str, level: int) -> None:
        if self._remove(held):
            log.log(level, "the warm %s %s %s and is stopped", self._launcher.kind, held.worker, why)
            self._launcher.stop(held.worker)
