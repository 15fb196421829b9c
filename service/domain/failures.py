"""Failures of attempts that a driver could not report, and the causes of aborted epochs.

The causes form a closed set, so that they can be counted over years and label a metric.
"""

from __future__ import annotations

import signal
from typing import Final

from epochal.contracts.catalog import Failure
from epochal.driver.orders import ExitCode
from epochal.errors import (
    AuthorError,
    CatalogWentBack,
    ComputationFailed,
    EnvironmentProblem,
    EpochalError,
    EpochTimeout,
    FileCorrupt,
    FileMissing,
    HandlesIncomplete,
    InvalidInput,
    MalformedRecord,
    NewerFormat,
    SinkError,
    SnapshotError,
    SourceError,
    SourceUnavailable,
    SparkLost,
    StorageFull,
    StoreUnavailable,
    error_class,
    fails_again,
)

_PERMANENT = (FileCorrupt, FileMissing, NewerFormat, EnvironmentProblem, CatalogWentBack)


class DriverLost(EpochalError):
    """The driver terminated without a report, or its heartbeat timed out."""

    slug = "driver-lost"


def process_gone(exit_code: int | None, last_words: str, cause: str | None = None) -> Failure:
    """The driver's process terminated. ``exit_code`` as in :class:`subprocess.Popen`, ``None`` if unknown.
    ``last_words``: the end of its log. ``cause``: an explanation by its launcher, here and below."""
    return Failure(type=DriverLost.slug, message=f"{cause or _how(exit_code)}{_end_of_log(last_words)}")


def not_heard(seconds: float, last_words: str, host: str | None = None, cause: str | None = None) -> Failure:
    """``host``: the other machine on which the driver, and its log, is."""
    end = _end_of_log(last_words) if host is None else _on(host)
    message = f"No heartbeat from the driver for {seconds:.0f} s.{_because(cause)}{end}"
    return Failure(type=DriverLost.slug, message=message)


def never_heard(seconds: float, last_words: str, host: str | None = None, cause: str | None = None) -> Failure:
    end = _end_of_log(last_words) if host is None else _on(host)
    message = f"The driver was started and sent no heartbeat within {seconds:.0f} s.{_because(cause)}{end}"
    return Failure(type=DriverLost.slug, message=message)


def not_stopped(seconds: float) -> Failure:
    message = (
        f"The driver did not stop within {seconds:.0f} s and was killed; a start continues from the last snapshot."
    )
    return Failure(type=DriverLost.slug, message=message)


def of_error(error: EpochalError) -> Failure:
    return Failure(type=error.slug, message=error.message)


def permanent(failure: Failure | None) -> bool:
    """Return whether a further attempt would fail in the same way, until the author or the caller changes something."""
    if failure is None:
        return False
    kind = error_class(failure.type)
    return fails_again(failure.type) or (kind is not None and issubclass(kind, _PERMANENT))


def ended_by_outage(failure: Failure | None) -> bool:
    """Return whether the attempt ended because the snapshot store or a source does not answer: no restart is used
    up."""
    kind = None if failure is None else error_class(failure.type)
    return kind is not None and issubclass(kind, StoreUnavailable | SourceUnavailable)


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "The driver's process has terminated."
    if exit_code == ExitCode.FENCED:
        return "The driver was fenced: it no longer owns its execution."
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"The driver was terminated by {name}{hint}."
    return f"The driver ended with exit code {exit_code}."


def _because(cause: str | None) -> str:
    return f" {cause}" if cause else ""


def _on(host: str) -> str:
    return f" It was started on {host}."


def _end_of_log(last_words: str) -> str:
    return f" The end of its log:\n{last_words}" if last_words else " Its log is empty."


_CAUSES: Final[tuple[tuple[type[EpochalError], str], ...]] = (
    (AuthorError, "author"),
    (ComputationFailed, "computation"),
    (MalformedRecord, "malformed"),
    (SourceError, "source"),
    (SinkError, "sink"),
    (StorageFull, "storage"),
    (SnapshotError, "storage"),
    (StoreUnavailable, "storage"),
    (EpochTimeout, "timeout"),
    (HandlesIncomplete, "handles"),
    (SparkLost, "spark"),
    (InvalidInput, "invalid"),
)
OTHER: Final = "other"
LOST: Final = "attempt-lost"
"""The attempt ended before the epoch was decided; its successor aborts it."""
CAUSES: Final = (*dict.fromkeys(cause for _, cause in _CAUSES), LOST, OTHER)


def cause_of(type: str) -> str:
    """One of ``CAUSES``, for the type of an epoch's failure."""
    if type == LOST:
        return LOST
    kind = error_class(type)
    if kind is None:
        return OTHER
    return next((cause for base, cause in _CAUSES if issubclass(kind, base)), OTHER)
