"""All errors that Epochal raises, below one root, in one module per area.

The docstring of a class is its default message. Errors of other software (Spark, LMDB, SQLAlchemy, the operating
system) are translated into these where that software is called. ``slug`` is stable: it is the last part of the problem
``type`` of HTTP answers (RFC 9457), and scripts can test for it.
"""

from __future__ import annotations

from epochal.errors.environment import (
    CatalogFull,
    CatalogUnavailable,
    CatalogVersion,
    ClockDeviates,
    EnvironmentProblem,
    InboxFull,
    IssuerUnavailable,
    LauncherUnavailable,
    MisdirectedRequest,
    SparkLost,
    TooManyRequests,
)
from epochal.errors.epochs import (
    AuthorError,
    CatalogWentBack,
    ComputationFailed,
    EpochAborted,
    EpochTimeout,
    Fenced,
    FilesMissing,
    HandlesIncomplete,
    MalformedRecord,
    OutcomeUnknown,
    RowRefused,
    RowRejected,
    SinkAhead,
    SinkError,
    SinkUnavailable,
    SliceOutdated,
    SourceChanged,
    SourceError,
    SourceUnavailable,
    StorageFull,
    TransientAuthorError,
)
from epochal.errors.input import (
    ArtifactError,
    IncompatibleState,
    InvalidArguments,
    InvalidCursor,
    InvalidInput,
    InvalidKey,
    OptionError,
    ParameterError,
    PipelineError,
    QueryRefused,
    SchemaError,
)
from epochal.errors.resources import (
    CallInProgress,
    CallOutcomeUnknown,
    Conflict,
    EventsExpired,
    Forbidden,
    NameTaken,
    NotFound,
    NotYetCommitted,
    OperationCancelled,
    PreconditionFailed,
    QuotaExceeded,
    RequestIdReused,
    SnapshotExpired,
    Unauthenticated,
)
from epochal.errors.root import EpochalError, error_class
from epochal.errors.storage import (
    FileCorrupt,
    FileMissing,
    ForeignFile,
    NewerFormat,
    SnapshotError,
    StoreRefuses,
    StoreUnavailable,
)

__all__ = [
    "ArtifactError",
    "AuthorError",
    "CallInProgress",
    "CallOutcomeUnknown",
    "CatalogFull",
    "CatalogUnavailable",
    "CatalogVersion",
    "CatalogWentBack",
    "ClockDeviates",
    "ComputationFailed",
    "Conflict",
    "EnvironmentProblem",
    "EpochAborted",
    "EpochTimeout",
    "EpochalError",
    "EventsExpired",
    "Fenced",
    "FileCorrupt",
    "FileMissing",
    "FilesMissing",
    "Forbidden",
    "ForeignFile",
    "HandlesIncomplete",
    "InboxFull",
    "IncompatibleState",
    "InvalidArguments",
    "InvalidCursor",
    "InvalidInput",
    "InvalidKey",
    "IssuerUnavailable",
    "LauncherUnavailable",
    "MalformedRecord",
    "MisdirectedRequest",
    "NameTaken",
    "NewerFormat",
    "NotFound",
    "NotYetCommitted",
    "OperationCancelled",
    "OptionError",
    "OutcomeUnknown",
    "ParameterError",
    "PipelineError",
    "PreconditionFailed",
    "QueryRefused",
    "QuotaExceeded",
    "RequestIdReused",
    "RowRejected",
    "RowRefused",
    "SchemaError",
    "SinkAhead",
    "SinkError",
    "SinkUnavailable",
    "SliceOutdated",
    "SnapshotError",
    "SnapshotExpired",
    "SourceChanged",
    "SourceError",
    "SourceUnavailable",
    "SparkLost",
    "StorageFull",
    "StoreRefuses",
    "StoreUnavailable",
    "TooManyRequests",
    "TransientAuthorError",
    "Unauthenticated",
    "ends_attempt",
    "error_class",
    "fails_again",
]


def fails_again(slug: str) -> bool:
    """Report whether a second run of the same slice would fail in the same way unless the code or input changes.

    Tasks are pure, so that exceptions of the author's code, computations that fail for a row, unreadable records and
    rows that do not fit a sink recur. The epochs that a sink shows do not change either.
    """
    kind = error_class(slug)
    if kind is None or issubclass(kind, TransientAuthorError):
        return False
    recurring = (InvalidInput, AuthorError, ComputationFailed, MalformedRecord, FilesMissing, RowRejected, SinkAhead)
    return issubclass(kind, recurring)


def ends_attempt(slug: str) -> bool:
    """Report whether the driver cannot run another epoch after this failure: it would recur, or Spark has ended."""
    kind = error_class(slug)
    return fails_again(slug) or (kind is not None and issubclass(kind, SparkLost))
