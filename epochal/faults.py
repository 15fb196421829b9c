"""Fault points: every numbered step of the protocol, as a public value at which tests can inject faults.

A module declares its points next to the code that hits them. :func:`declared` lists all, and a test fails if a numbered
step has none. In production a hit costs one check of a global variable. A process reads its faults from the environment
variable ``EPOCHAL_FAULTS`` (JSON, see :class:`Fault`), so that a test can kill drivers, Python workers and control
planes at an exact step. Within one process, :func:`injected` does the same without the environment.

``EPOCHAL_FAULTS`` is only read if ``EPOCHAL_FAULT_INJECTION`` is ``1``, which the test kit sets. Otherwise a control
plane does not pass faults to its drivers, and processes ignore them.
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
    """A point in the protocol. ``name`` starts with the number of the step: ``E4.manifest-written``."""

    name: str
    description: str

    @property
    def step(self) -> str:
        return self.name.partition(".")[0]

    def hit(self, epoch: int | None = None) -> None:
        """Called at the step. Has no effect unless a fault is planned here."""
        if _handler is not None:
            _handler(self, epoch)
        elif _planned:
            for fault in _planned:
                if fault.matches(self, epoch):
                    fault.fire(self)


@dataclass(frozen=True)
class Fault:
    """A planned fault at a point.

    ``action``: ``kill`` (SIGKILL this process), ``stop`` (SIGSTOP), ``raise`` (RuntimeError), ``full-disk`` (OSError
    ENOSPC), ``delay`` (sleep ``seconds``). ``epoch`` limits it to one epoch. ``once`` is a path: the file is
    created when the fault fires, and while it exists the fault does not fire again, in any process.
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
            os._exit(128 + signal.SIGKILL)  # SIGKILL has no effect for the first process of a container
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
    """Return whether faults can be injected into processes of this environment."""
    return environment.get(SWITCH) == "1"


_planned: tuple[Fault, ...] = _read_environment()


def plan(faults: Sequence[Fault]) -> None:
    """Replace the planned faults of this process, for example after a fork. This needs no switch."""
    global _planned
    _planned = tuple(faults)


def plan_from_environment() -> None:
    """Read ``EPOCHAL_FAULTS`` again, for a forked process with its own environment."""
    plan(_read_environment())


def declare(name: str, description: str) -> FaultPoint:
    """Declare a fault point, once, at module level."""
    point = FaultPoint(name, description)
    if _declared.setdefault(name, point) != point:
        raise ValueError(f"fault point {name} is declared twice")
    return point


def declared() -> dict[str, FaultPoint]:
    """All points of the imported modules, by name."""
    return dict(sorted(_declared.items()))


@contextmanager
def injected(handler: Callable[[FaultPoint, int | None], Any]) -> Iterator[None]:
    """Within the block, call ``handler(point, epoch)`` at every hit in this process. It can raise."""
    global _handler
    before, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = before


@dataclass
class Recorder:
    """A handler that records hits: ``with injected(recorder): ..``."""

    hits: list[tuple[str, int | None]] = field(default_factory=list)

    def __call__(self, point: FaultPoint, epoch: int | None) -> None:
        self.hits.append((point.name, epoch))
