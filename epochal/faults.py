"""Fault points: every numbered step of the protocol, as a public value that tests can make fail.

A module declares its points where it hits them; :func:`declared` lists all, and a test fails when a numbered step has
none. In production a hit costs one dictionary look-up. A process learns what to do at a point from the environment
variable ``EPOCHAL_FAULTS`` (JSON, see :class:`Fault`), so that drivers, Python workers and control planes that a test
starts can be killed at an exact step; within one process :func:`injected` does the same without the environment.

``EPOCHAL_FAULTS`` is read only where ``EPOCHAL_FAULT_INJECTION`` is ``1``, which the test kit sets. Without this switch
a control plane does not hand faults on to its drivers, and no process obeys them.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

ENVIRONMENT = "EPOCHAL_FAULTS"
SWITCH = "EPOCHAL_FAULT_INJECTION"


@dataclass(frozen=True)
class FaultPoint:
    """A place in the protocol. ``name`` starts with the step's number: ``E4.manifest-written``."""

    name: str
    description: str

    @property
    def step(self) -> str:
        return self.name.partition(".")[0]

    def hit(self, epoch: int | None = None) -> None:
        """Called where the step is. Does nothing unless a fault is planned here."""
        if _handler is not None:
            _handler(self, epoch)
        elif _planned:
            for fault in _planned:
                if fault.matches(self, epoch):
                    fault.fire(self)


@dataclass(frozen=True)
class Fault:
    """What shall happen at a point.

    ``action``: ``kill`` (SIGKILL this process), ``stop`` (SIGSTOP), ``raise`` (RuntimeError), ``full-disk`` (OSError
    ENOSPC), ``delay`` (sleep ``seconds``). ``epoch`` limits it to one epoch. ``once`` is a path: created when the fault
    fires, and while it exists the fault does not fire again, in any process.
    """

    point: str
    action: str
    epoch: int | None = None
    once: str | None = None
    seconds: float = 0.0

    def matches(self, point: FaultPoint, epoch: int | None) -> bool:
        return self.point == point.name and (self.epoch is None or self.epoch == epoch)

    def fire(self, point: FaultPoint) -> None:
        if self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            os._exit(128 + signal.SIGKILL)  # the first process of a container cannot kill itself
        elif self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action == "full-disk":
            raise OSError(errno.ENOSPC, f"No space left on device (fault injected at {point.name})")
        elif self.action == "delay":
            time.sleep(self.seconds)
        elif self.action == "raise":
            raise RuntimeError(f"fault injected at {point.name}")
        else:
            raise ValueError(f"unknown fault action {self.action!r}")


_declared: dict[str, FaultPoint] = {}
_handler: Callable[[FaultPoint, int | None], Any] | None = None


def _read_environment() -> tuple[Fault, ...]:
    text = os.environ.get(ENVIRONMENT)
    return tuple(Fault(**item) for item in json.loads(text)) if text and switched_on(os.environ) else ()


def switched_on(environment: Mapping[str, str]) -> bool:
    """Whether faults may be injected into processes of this environment."""
    return environment.get(SWITCH) == "1"


_planned: tuple[Fault, ...] = _read_environment()


def plan(faults: Sequence[Fault]) -> None:
    """What shall happen in this process from now on: for one that was forked, and has its parent's plan.

    Whoever calls this means it: no switch is needed.
    """
    global _planned
    _planned = tuple(faults)


def plan_from_environment() -> None:
    """Read ``EPOCHAL_FAULTS`` again: for a process that was forked, and has an environment of its own."""
    plan(_read_environment())


def declare(name: str, description: str) -> FaultPoint:
    """Declare a fault point, once, at module level."""
    point = FaultPoint(name, description)
    if _declared.setdefault(name, point) != point:
        raise ValueError(f"fault point {name} is declared twice")
    return point


def declared() -> dict[str, FaultPoint]:
    """All points of the modules imported so far, by name."""
    return dict(sorted(_declared.items()))


@contextmanager
def injected(handler: Callable[[FaultPoint, int | None], Any]) -> Iterator[None]:
    """Within the block, ``handler(point, epoch)`` is called at every hit in this process; it may raise."""
    global _handler
    before, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = before


@dataclass
class Recorder:
    """A handler that remembers which points were hit: ``with injected(recorder): ..``."""

    hits: list[tuple[str, int | None]] = field(default_factory=list)

    def __call__(self, point: FaultPoint, epoch: int | None) -> None:
        self.hits.append((point.name, epoch))
