"""Why epochs are aborted, as a closed set: what can be counted for years, and be a label of a metric."""

from __future__ import annotations

from typing import Final

from epochal.errors import (
    AuthorError,
    ComputationFailed,
    EpochalError,
    EpochTimeout,
    HandlesIncomplete,
    InvalidInput,
    MalformedRecord,
    SinkError,
    SnapshotError,
    SourceError,
    SparkLost,
    StorageFull,
    error_class,
)

_CAUSES: Final[tuple[tuple[type[EpochalError], str], ...]] = (
    (AuthorError, "author"),
    (ComputationFailed, "computation"),
    (MalformedRecord, "malformed"),
    (SourceError, "source"),
    (SinkError, "sink"),
    (StorageFull, "storage"),
    (SnapshotError, "storage"),
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
