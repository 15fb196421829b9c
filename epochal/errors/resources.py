"""Errors about resources: missing, in conflict, expired, or not permitted."""

from __future__ import annotations

from epochal.errors.root import EpochalError


class NotFound(EpochalError):
    """The requested resource does not exist."""

    slug = "not-found"


class Conflict(EpochalError):
    """The request conflicts with the current state of the resource."""

    slug = "conflict"


class CallInProgress(Conflict):
    """The first call with this Idempotency-Key is still in progress; repeat the call later to get its answer."""

    slug = "call-in-progress"


class CallOutcomeUnknown(Conflict):
    """The outcome of the first call with this Idempotency-Key is unknown; it may have changed something."""

    slug = "call-outcome-unknown"


class RequestIdReused(Conflict):
    """The request id belongs to another call of the application's entries; use a new id for this call."""

    slug = "request-id-reused"


class NameTaken(Conflict):
    """The name is already in use."""

    slug = "name-taken"


class QuotaExceeded(Conflict):
    """The request would exceed a quota of the project."""

    slug = "quota-exceeded"


class PreconditionFailed(EpochalError):
    """The resource has changed since the revision that `If-Match` names."""

    slug = "precondition-failed"


class OperationCancelled(Conflict):
    """The operation was cancelled and its changes were removed."""

    slug = "operation-cancelled"


class SnapshotExpired(EpochalError):
    """The snapshot has expired: it is older than the retention of its application."""

    slug = "snapshot-expired"


class EventsExpired(EpochalError):
    """The events after the last received event have expired: they are older than the retention of events."""

    slug = "events-expired"


class NotYetCommitted(EpochalError):
    """The requested epoch was not committed within the allowed time."""

    slug = "not-yet-committed"


class Unauthenticated(EpochalError):
    """A valid token is required."""

    slug = "unauthenticated"


class Forbidden(EpochalError):
    """The token's scope does not allow this."""

    slug = "forbidden"
