"""Every error that Epochal raises, below one root.

The docstring of a class is its default message. Vendor errors (Spark, LMDB, SQLAlchemy, operating system) are
translated into these at the one border where the vendor is called. ``slug`` is stable: it is the last part of the
problem ``type`` that HTTP clients see (RFC 9457), and what scripts may test for.
"""

from __future__ import annotations

from typing import ClassVar


class EpochalError(Exception):
    """Epochal could not do what was asked."""

    slug: ClassVar[str] = "error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self.args[0])


def error_class(slug: str) -> type[EpochalError] | None:
    """The class that declares this slug, among those that are imported; ``None``: no such class is known here.

    A class without a slug of its own travels as its parent.
    """
    pending: list[type[EpochalError]] = [EpochalError]
    while pending:
        kind = pending.pop()
        if vars(kind).get("slug") == slug:
            return kind
        pending += kind.__subclasses__()
    return None


def fails_again(slug: str) -> bool:
    """Whether the same slice, run again, would fail in the same way: the code or the input has to be changed first.

    Tasks are pure, so that an exception of the author's code, a computation that fails for a row and a record that
    cannot be read come back; what a sink shows stays.
    """
    kind = error_class(slug)
    if kind is None or issubclass(kind, TransientAuthorError):
        return False
    return issubclass(kind, (InvalidInput, AuthorError, ComputationFailed, MalformedRecord, FilesMissing, SinkAhead))


def ends_attempt(slug: str) -> bool:
    """Whether the driver cannot run another epoch after this failure: it would fail again, or Spark is gone."""
    kind = error_class(slug)
    return fails_again(slug) or (kind is not None and issubclass(kind, SparkLost))


# What the author or the caller got wrong.


class InvalidInput(EpochalError):
    """The request is not valid."""

    slug = "invalid-input"


class PipelineError(InvalidInput):
    """The pipeline is not valid."""

    slug = "invalid-pipeline"


class IncompatibleState(InvalidInput):
    """The version cannot go on from the state that is there."""

    slug = "incompatible-state"


class ParameterError(InvalidInput):
    """The parameters do not fit what the pipeline declares."""

    slug = "invalid-parameters"


class ArtifactError(InvalidInput):
    """The artifact cannot be used."""

    slug = "invalid-artifact"


class SchemaError(InvalidInput):
    """A schema is not valid."""

    slug = "invalid-schema"


class InvalidKey(InvalidInput):
    """The key does not fit the state table."""

    slug = "invalid-key"


class InvalidCursor(InvalidInput):
    """The cursor does not belong to this list."""

    slug = "invalid-cursor"


class InvalidArguments(InvalidInput):
    """The arguments of a call do not fit its entry."""

    slug = "invalid-arguments"


class OptionError(InvalidInput):
    """An option is unknown or has a wrong value."""

    slug = "invalid-option"


class QueryRefused(InvalidInput):
    """The standing query cannot be taken."""

    slug = "query-refused"

    def __init__(self, message: str | None = None, reason: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """The slug of the reason, one of docs/standing-queries.md."""
        self.position = position
        """Where in the query's text, counted from 1."""


# What is not there, or already is.


class NotFound(EpochalError):
    """There is no such thing."""

    slug = "not-found"


class Conflict(EpochalError):
    """The request is at odds with what is there."""

    slug = "conflict"


class CallInProgress(Conflict):
    """The first call with this Idempotency-Key is still being worked on; repeat it in a moment, for its answer."""

    slug = "call-in-progress"


class CallOutcomeUnknown(Conflict):
    """Nobody has the answer to the first call with this Idempotency-Key, which may have changed something."""

    slug = "call-outcome-unknown"


class RequestIdReused(Conflict):
    """The request id belongs to another call of the application's entries; give this one an id of its own."""

    slug = "request-id-reused"


class NameTaken(Conflict):
    """The name is taken."""

    slug = "name-taken"


class QuotaExceeded(Conflict):
    """The project would have more than its quotas allow."""

    slug = "quota-exceeded"


class PreconditionFailed(EpochalError):
    """It has changed since the revision that `If-Match` names."""

    slug = "precondition-failed"


class OperationCancelled(Conflict):
    """The operation was cancelled; nothing is left of it."""

    slug = "operation-cancelled"


class SnapshotExpired(EpochalError):
    """The snapshot has expired: it is past the retention of its application."""

    slug = "snapshot-expired"


class EventsExpired(EpochalError):
    """Events after the one that was seen last are gone: they are past the retention of events."""

    slug = "events-expired"


class NotYetCommitted(EpochalError):
    """The epoch asked for was not committed in the time allowed."""

    slug = "not-yet-committed"


# Identity.


class Unauthenticated(EpochalError):
    """A valid token is needed."""

    slug = "unauthenticated"


class Forbidden(EpochalError):
    """The token's scope does not allow this."""

    slug = "forbidden"


# What happens while an epoch runs.


class EpochAborted(EpochalError):
    """The epoch was aborted; its slice will be processed again."""

    slug = "epoch-aborted"


class AuthorError(EpochAborted):
    """The author's code raised an exception; the message holds its own traceback."""

    slug = "author-error"


class TransientAuthorError(AuthorError):
    """The author's code raised an exception of the operating system (a connection, a file, memory): it may pass."""

    slug = "author-error-transient"


class ComputationFailed(EpochAborted):
    """A computation of the pipeline fails for a row: a number leaves its type, a cast is not possible."""

    slug = "computation-failed"


class HandlesIncomplete(EpochAborted):
    """E3: not exactly one handle for each (operator or sink, subtask)."""

    slug = "handles-incomplete"


class EpochTimeout(EpochAborted):
    """The epoch took longer than its timeout."""

    slug = "epoch-timeout"


class SourceError(EpochAborted):
    """A source could not be read."""

    slug = "source-error"


class SourceChanged(SourceError):
    """Source data changed after its slice was recorded; the slice can no longer be read exactly once."""

    slug = "source-changed"


class FilesMissing(SourceError):
    """Files that a source has listed are missing before an epoch has read them."""

    slug = "files-missing"


class SliceOutdated(SourceError):
    """Files of an epoch's slice are missing; the next epoch is planned without them, as ``missing="skip"`` allows."""

    slug = "slice-outdated"


class MalformedRecord(SourceError):
    """A source record does not fit the declared schema."""

    slug = "malformed-record"


class SinkError(EpochAborted):
    """A sink could not be written."""

    slug = "sink-error"


class RowRefused(SinkError):
    """A sink's target refuses a row that is decided: the sink stops until a person corrects it or drops the epoch."""

    slug = "row-refused"


class SinkUnavailable(SinkError):
    """A sink's server cannot be reached, or does not take writes now. Nothing is wrong with the application: wait."""

    slug = "sink-unavailable"


class SinkAhead(SinkError):
    """A sink shows epochs that the application's state does not know: an older catalog or store was put back."""

    slug = "sink-ahead"

    @classmethod
    def of(cls, where: str, shows: int, application: str, epoch: int) -> SinkAhead:
        """``where``: the sink and its place, to begin a sentence with; ``epoch``: of the application's state."""
        return cls(
            f"{where} already holds epoch {shows}, but the application's state is at epoch {epoch}: state was lost, or "
            "an older catalog or store was put back. Put back the later ones; or leave behind what the sink shows, on "
            f"a new branch: `epochal rollback {application} --epoch {epoch}` says what that means, and asks."
        )


class StorageFull(EpochAborted):
    """There is no space left where a file was being written."""

    slug = "storage-full"


class Fenced(EpochalError):
    """A later attempt has taken over; this process must stop."""

    slug = "fenced"


class OutcomeUnknown(EpochalError):
    """It is not known whether the write landed; it has to be read again, never guessed."""

    slug = "outcome-unknown"


class CatalogWentBack(EpochalError):
    """The catalog does not know a decision any more that it answered: it was put back to an earlier state."""

    slug = "catalog-went-back"


# Storage.


class SnapshotError(EpochalError):
    """A snapshot cannot be used."""

    slug = "snapshot-error"


class FileCorrupt(SnapshotError):
    """A snapshot's file does not have the checksum that its manifest names."""

    slug = "file-corrupt"


class ForeignFile(FileCorrupt):
    """A manifest names a file that is not of its lineage."""

    slug = "foreign-file"


class FileMissing(SnapshotError):
    """A file that a manifest names is missing."""

    slug = "file-missing"


class NewerFormat(SnapshotError):
    """A snapshot was written by a later version of Epochal, in a format that this one does not know."""

    slug = "newer-format"


# The surroundings.


class TooManyRequests(EpochalError):
    """The control plane has as much of this to do as it takes at a time; nothing was begun, call again in a moment."""

    slug = "too-many-requests"

    def __init__(self, message: str | None = None, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InboxFull(TooManyRequests):
    """As many calls of the application's entries wait as may; call again when it has caught up."""

    slug = "inbox-full"


class MisdirectedRequest(EpochalError):
    """This node does not answer such requests; another one does."""

    slug = "misdirected-request"


class SparkLost(EpochalError):
    """Spark's JVM has ended, or does not answer any more; the next attempt starts another one."""

    slug = "spark-lost"


class CatalogUnavailable(EpochalError):
    """The catalog cannot be reached."""

    slug = "catalog-unavailable"


class CatalogFull(CatalogUnavailable):
    """The catalog cannot be written: no space is left on its disk. Free some space."""

    slug = "catalog-full"


class ClockDeviates(EpochalError):
    """The clock of the driver differs from the clock of the catalog's database by more than the tolerance."""

    slug = "clock-deviates"


class LauncherUnavailable(EpochalError):
    """Whoever runs drivers does not answer: what became of them is not known now, and none is started."""

    slug = "launcher-unavailable"


class IssuerUnavailable(EpochalError):
    """The identity provider does not give the keys by which tokens are verified: whether one is good is not known."""

    slug = "issuer-unavailable"


class CatalogVersion(EpochalError):
    """The catalog was made by another version of Epochal."""

    slug = "catalog-version"


class EnvironmentProblem(EpochalError):
    """Something that Epochal needs on this machine is missing."""

    slug = "environment"
