"""Lost answers for the degraded contract suites: the server completes an operation, and the caller receives an error.

Each kind of server has its own class: a file system (:class:`FileAnswers`), a server behind the test kit's proxy
(:class:`ProxyAnswers`), and a backend that declares fault points (:class:`StepAnswers`).
"""

from __future__ import annotations

import errno
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from epochal.faults import FaultPoint, injected
from epochal.testing.servers.proxy import TcpProxy


class AnswerLost(Exception):
    """The step has completed, but its answer was lost."""


@dataclass
class Loss:
    """Records whether the planned loss has happened."""

    met: threading.Event = field(default_factory=threading.Event)

    @property
    def happened(self) -> bool:
        return self.met.is_set()


class LostAnswers(ABC):
    """A way to lose exactly one answer in a block."""

    @abstractmethod
    def losing(self, number: int) -> AbstractContextManager[Loss]:
        """Lose the answer with that number (from 1) within the block."""


class StepAnswers(LostAnswers):
    """Fail the call at a fault point, directly after a completed step. Fault points count in the order of their hits.

    ``only``: selects the points that count, by name.
    """

    def __init__(self, only: Callable[[str], bool] = lambda name: True) -> None:
        self._only = only

    @contextmanager
    def losing(self, number: int) -> Iterator[Loss]:
        loss, hits = Loss(), 0

        def lose(point: FaultPoint, epoch: int | None) -> None:
            nonlocal hits
            if not self._only(point.name):
                return
            hits += 1
            if hits == number:
                loss.met.set()
                raise AnswerLost(f"after {point.name}")

        with injected(lose):
            yield loss


class FileAnswers(LostAnswers):
    """A file system that completes an operation and reports an error, as a network file system can.

    Covers this thread's operations on names, and ``fsync``. Operations that libraries perform outside Python are not
    covered.
    """

    OPERATIONS = ("rename", "replace", "link", "mkdir", "unlink", "rmdir", "fsync")

    @contextmanager
    def losing(self, number: int) -> Iterator[Loss]:
        loss, calls, mine = Loss(), 0, threading.get_ident()

        def degraded(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                answer = real(*arguments, **options)
                if threading.get_ident() == mine:
                    calls += 1
                    if calls == number:
                        loss.met.set()
                        raise OSError(errno.EIO, "the answer was lost")
                return answer

            return call

        with ExitStack() as stack:
            for name in self.OPERATIONS:
                stack.enter_context(patch.object(os, name, degraded(getattr(os, name))))
            yield loss


class ProxyAnswers(LostAnswers):
    """A server behind the proxy. The connection is cut when the answer arrives; greetings of the protocol count as
    answers."""

    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy

    @contextmanager
    def losing(self, number: int) -> Iterator[Loss]:
        try:
            yield Loss(self._proxy.lose_answer(number))
        finally:
            self._proxy.heal()
