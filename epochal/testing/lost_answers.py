"""Answers that get lost: what was asked is done, and whoever asked hears of an error. For the degraded contract suites.

One way for each kind of server: a file system (:class:`FileAnswers`), anything that is reached through a test kit's
proxy (:class:`ProxyAnswers`), and any backend that declares fault points (:class:`StepAnswers`).
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
    """The step is done, but nobody hears of it."""


@dataclass
class Loss:
    """Whether it came to the answer that was to be lost."""

    met: threading.Event = field(default_factory=threading.Event)

    @property
    def happened(self) -> bool:
        return self.met.is_set()


class LostAnswers(ABC):
    """A way to lose exactly one answer in a block."""

    @abstractmethod
    def losing(self, number: int) -> AbstractContextManager[Loss]:
        """In the block, the answer of that number (from 1) is lost."""


class StepAnswers(LostAnswers):
    """What is lost is what follows a step: at the fault point, in the order in which they are hit, the call breaks off.

    ``only``: points of other names do not count.
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
    """A file system that does what it is asked to, and reports an error: as one does that is mounted over a network.

    Of this thread's operations on names, and of ``fsync``; what libraries do without Python is not met.
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
    """A server behind the proxy: the connection is cut as the answer comes, greetings of the protocol included."""

    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy

    @contextmanager
    def losing(self, number: int) -> Iterator[Loss]:
        try:
            yield Loss(self._proxy.lose_answer(number))
        finally:
            self._proxy.heal()
