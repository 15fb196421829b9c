"""Errors while an epoch runs."""

from __future__ import annotations

from epochal.errors.root import EpochalError


class EpochAborted(EpochalError):
    """The epoch was aborted; its slice will be processed again."""

    slug = "epoch-aborted"


class AuthorError(EpochAborted):
    """The author's code raised an exception; the message contains its traceback."""

    slug = "author-error"


class TransientAuthorError(AuthorError):
    """The author's code raised an exception of the operating system (connection, file, memory); it may be transient."""

    slug = "author-error-transient"


class ComputationFailed(EpochAborted):
    """A computation of the pipeline fails for a row, such as a numeric overflow or an invalid cast."""

    slug = "computation-failed"


class HandlesIncomplete(EpochAborted):
    """E3: there is not exactly one handle for each (operator or sink, subtask)."""

    slug = "handles-incomplete"


class EpochTimeout(EpochAborted):
    """The epoch took longer than its timeout."""

    slug = "epoch-timeout"


class SourceError(EpochAborted):
    """A source could not be read."""

    slug = "source-error"


class SourceUnavailable(SourceError):
    """The external system of a source does not answer at present. The engine waits and retries."""

    slug = "source-unavailable"


class SourceChanged(SourceError):
    """Source data changed after its slice was recorded; the slice can no longer be read exactly once."""

    slug = "source-changed"


class FilesMissing(SourceError):
    """Files that a source has listed were deleted before an epoch read them."""

    slug = "files-missing"


class SliceOutdated(SourceError):
    """Files of an epoch's slice are missing; the next epoch is planned without them, as ``missing="skip"`` allows."""

    slug = "slice-outdated"


class MalformedRecord(SourceError):
    """A source record does not match the declared schema."""

    slug = "malformed-record"


class SinkError(EpochAborted):
    """A sink could not be written."""

    slug = "sink-error"


class RowRejected(SinkError):
    """A task of a sink rejects a row before the epoch is decided. The transaction has taken no row of its batch."""

    slug = "row-rejected"


class RowRefused(SinkError):
    """The target of a sink refuses a row of a decided epoch. The sink stops until the row is corrected or dropped."""

    slug = "row-refused"


class SinkUnavailable(SinkError):
    """The server of a sink is unreachable or does not accept writes at present. The engine waits and retries."""

    slug = "sink-unavailable"


class SinkAhead(SinkError):
    """A sink shows epochs that the application's state does not have: an older catalog or store was restored."""

    slug = "sink-ahead"

    @classmethod
    def of(cls, where: str, shows: int, application: str, epoch: int) -> SinkAhead:
        """``where``: the sink and its target, the beginning of the sentence; ``epoch``: the epoch of the state."""
        return cls(
            f"{where} already holds epoch {shows}, but the application's state is at epoch {epoch}: state was lost, or "
            "an older catalog or store was restored. Restore the later one. Or continue on a new branch without the "
            f"later epochs: `epochal rollback {application} --epoch {epoch}` shows the consequences and asks for "
            "confirmation."
        )


class StorageFull(EpochAborted):
    """No space is left on the device."""

    slug = "storage-full"


class Fenced(EpochalError):
    """A later attempt has taken over; this process must stop."""

    slug = "fenced"


class OutcomeUnknown(EpochalError):
    """The outcome of a write is unknown; the value must be read again."""

    slug = "outcome-unknown"


class CatalogWentBack(EpochalError):
    """The catalog lost a decision that it had confirmed: it was restored to an earlier state."""

    slug = "catalog-went-back"
