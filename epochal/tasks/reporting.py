"""Reports a failure of a task to the driver, as one machine-readable line in the text of the exception.

Spark passes the driver only the text of an exception in a Python worker. The task therefore ends that text with
``epochal-failure: {Failure as JSON}``; :func:`epochal.engine.failures.failure_of` reads that line.
"""

from __future__ import annotations

import errno
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Literal

from epochal.contracts.catalog import Failure
from epochal.errors import AuthorError, EpochAborted, EpochalError, InvalidInput, StorageFull, TransientAuthorError

MARKER = "epochal-failure: "
TRACEBACK_TITLE = "Traceback (most recent call last):"
LONGEST_TRACEBACK = 20_000
_MACHINERY = tuple(
    f"{folder}/"
    for package in ("epochal", "pyspark", "py4j")
    for folder in getattr(find_spec(package), "submodule_search_locations", ())
)


def author_traceback(error: BaseException) -> str:
    """The traceback of ``error`` and its causes as Python prints it, without the frames of Epochal and Spark."""
    report = traceback.TracebackException.from_exception(error, compact=True)
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        link = pending.pop()
        if link is None:
            continue
        link.stack = traceback.StackSummary.from_list(
            [frame for frame in link.stack if not _is_machinery(frame.filename)]
        )
        pending += [link.__cause__, link.__context__]
    text = "".join(report.format()).rstrip()
    return text if len(text) <= LONGEST_TRACEBACK else f"{text[:2000]}\n...\n{text[2000 - LONGEST_TRACEBACK :]}"


def author_error(where: str, error: BaseException) -> AuthorError:
    """An error that the author's code raised at ``where`` (``Operator 'delays', key (origin='JFK')``)."""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    kind = TransientAuthorError if _may_pass(error) else AuthorError
    return kind(f"{where}: the author's code raised {what}\n{author_traceback(error)}")


@dataclass(frozen=True)
class AuthorCall:
    """A ``with`` block around calls of an author's code. Adds the place and the author's lines to errors.

    Raises ``AuthorError`` for errors of the code, and Epochal's own errors unchanged. An ``InvalidInput``, which the
    code has caused by a wrong argument or result, gets place and traceback.
    """

    where: Callable[[], str]
    """Returns a text like ``Operator 'delays', key (origin='JFK')``; called only after a failure."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidInput):
            shown = author_traceback(error)
            lines = f"\n{shown}" if TRACEBACK_TITLE in shown else ""  # none if the code had already returned
            raise type(error)(f"{_at(self.where(), error.message)}{lines}") from error
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, EpochalError):
            raise author_error(self.where(), error) from error


def _at(where: str, message: str) -> str:
    """``message`` after ``where``, without a second mention of the operator."""
    operator, _, _ = where.partition(", ")
    return f"{where}: {message.removeprefix(f'{operator}: ')}"


def _may_pass(error: BaseException) -> bool:
    """True if an ``OSError`` or ``MemoryError`` caused the error, as in clients of networks, so that a retry may
    help."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, (OSError, MemoryError)):
            return True
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return False


def translated(error: Exception) -> EpochalError:
    """``error`` as one of Epochal's own."""
    if isinstance(error, EpochalError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"No space is left on a device that a task writes to ({error}). Free space there; the epoch is retried."
        )
    return EpochAborted(f"{type(error).__name__}: {error}\n{_whole_traceback(error)}")


def as_failure(error: EpochalError, step: str | None = None) -> Failure:
    """The catalog's record of ``error``; a traceback in its message becomes the failure's traceback."""
    message, title, rest = error.message.partition(TRACEBACK_TITLE)
    if title:
        return Failure(type=error.slug, message=message.strip(), step=step, traceback=(title + rest).rstrip())
    return Failure(type=error.slug, message=message.strip(), step=step)


def encode(failure: Failure) -> str:
    return MARKER + json.dumps(failure.model_dump(), sort_keys=True)


@dataclass
class Reporting:
    """A ``with`` block around a task. Converts every exception to an ``EpochalError`` whose text ends with the marker
    line. The task updates ``step``.
    """

    owner: str
    """The name of the task in messages: ``Operator 'delays'`` or ``Sink 'out'``."""
    epoch: int | None = None
    """``None`` if the task has no epoch number."""
    step: Literal["T1", "T2", "T3"] = "T1"
    subtask: int | None = None

    def __enter__(self) -> Reporting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        known = translated(error)
        failure = as_failure(known, self.step)
        if self.owner not in failure.message:
            failure = failure.model_copy(update={"message": f"{self._where()}: {failure.message}"})
        text = f"{failure.message}\n{failure.traceback or ''}".rstrip()
        raise type(known)(f"{text}\n{encode(failure)}") from error

    def _where(self) -> str:
        task = self.owner if self.subtask is None else f"{self.owner}, subtask {self.subtask}"
        return f"{task}, {self.step}" if self.epoch is None else f"{task}, epoch {self.epoch}, {self.step}"


def _whole_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY)
