"""Conversion between errors and ``application/problem+json`` (RFC 9457), and the HTTP status of each error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from epochal import errors
from epochal.contracts.catalog import Failure

if TYPE_CHECKING:
    import httpx

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:epochal:problem:"
BAD_REQUEST = "bad-request"
"""Problem type for malformed requests; it has no error class."""

STATUSES: Mapping[type[errors.EpochalError], int] = {
    errors.EpochalError: 500,
    errors.InvalidInput: 422,
    errors.InvalidCursor: 400,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.SnapshotExpired: 410,
    errors.EventsExpired: 410,
    errors.PreconditionFailed: 412,
    errors.NotYetCommitted: 409,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.MisdirectedRequest: 421,
    errors.EpochAborted: 422,
    errors.StorageFull: 507,
    errors.Fenced: 409,
    errors.TooManyRequests: 429,
    errors.CatalogUnavailable: 503,
    errors.LauncherUnavailable: 503,
    errors.StoreUnavailable: 503,
    errors.IssuerUnavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.NewerFormat: 503,
    errors.CatalogVersion: 503,
    errors.EnvironmentProblem: 503,
}
"""HTTP status by error class; the nearest base class applies. A problem of an unknown type maps to the first class with
its status."""

# Statuses of answers by middleware or proxies.
_FURTHER_STATUSES: Mapping[int, type[errors.EpochalError]] = {
    400: errors.InvalidInput,
    413: errors.InvalidInput,
    502: errors.CatalogUnavailable,
    504: errors.CatalogUnavailable,
}
_MEANINGS = {**{status: kind for kind, status in reversed(tuple(STATUSES.items()))}, **_FURTHER_STATUSES}


class FieldError(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    message: str


class Problem(BaseModel):
    """A problem document. ``type`` is stable; texts are not. Further members are allowed."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    request: str | None = None
    """Id of the request, as in ``X-Request-Id`` and in the log."""
    errors: list[FieldError] | None = None


def status_of(error: errors.EpochalError) -> int:
    return next(STATUSES[base] for base in type(error).__mro__ if base in STATUSES)


def title_of(error_type: type[errors.EpochalError]) -> str:
    """``NameTaken`` -> ``Name taken``."""
    return re.sub(r"(?<!^)([A-Z])", lambda match: " " + match[1].lower(), error_type.__name__)


def problem_of(error: errors.EpochalError, **context: Any) -> Problem:
    """``context``: ``instance``, ``request`` and further members."""
    return Problem(
        type=PREFIX + error.slug, title=title_of(type(error)), status=status_of(error), detail=error.message, **context
    )


def problem_of_failure(failure: Failure) -> Problem:
    """Problem of an operation that failed with a failure of the driver or the supervisor."""
    known = re.fullmatch(r"[a-z][a-z0-9-]*", failure.type)
    return Problem(
        type=PREFIX + (failure.type if known else "execution-failed"),
        title="Execution failed",
        status=500,
        detail=f"{failure.type}: {failure.message}",
        failure=failure.model_dump(exclude_none=True),
    )


def error_of_problem(problem: Problem) -> errors.EpochalError:
    """Convert a problem document to an exception; the message includes validation errors.

    An unknown slug maps to the error class of its status.
    """
    return _named(problem) or _MEANINGS.get(problem.status, errors.EpochalError)(_message(problem))


def error_of_response(response: httpx.Response) -> errors.EpochalError:
    """The exception for an answer with an error status. The body must have been read."""
    problem = problem_in(response)
    return _foreign(response) if problem is None else error_of_problem(problem)


def error_by_name(response: httpx.Response) -> errors.EpochalError:
    """Variant of :func:`error_of_response` that ignores the status: an unknown slug is an ``EpochalError``.

    For callers that act on the class: a 404 of a proxy does not mean that an epoch is missing.
    """
    problem = problem_in(response)
    if problem is None:
        return errors.EpochalError(_foreign(response).message)
    return _named(problem) or errors.EpochalError(_message(problem))


def problem_in(response: httpx.Response) -> Problem | None:
    """The problem document in an answer; ``None`` if a control plane did not send it. Only ``type`` is required."""
    absent = {"title": "", "status": response.status_code, "detail": ""}
    try:
        return Problem.model_validate({**absent, **response.json()}, extra="ignore")
    except (ValueError, TypeError):  # no JSON, no object, no problem document
        return None


def slug_of(problem: Problem) -> str:
    return problem.type.removeprefix(PREFIX)


def _named(problem: Problem) -> errors.EpochalError | None:
    kind = errors.error_class(slug_of(problem))
    return None if kind is None else kind(_message(problem))


def _message(problem: Problem) -> str:
    message = problem.detail or problem.title or f"The control plane answered with status {problem.status}."
    not_in_it = [error for error in problem.errors or () if error.message not in message]
    fields = "; ".join(f"{error.field}: {error.message}" for error in not_in_it)
    return f"{message} ({fields})" if fields else message


def _foreign(response: httpx.Response) -> errors.EpochalError:
    kind = _MEANINGS.get(response.status_code, errors.EpochalError)
    return kind(
        f"{response.request.url} answered {response.status_code} {response.reason_phrase} without a problem document, "
        "so it is not a control plane of Epochal. Check the URL (EPOCHAL_URL)."
    )
