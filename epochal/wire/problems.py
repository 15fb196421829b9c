"""Errors as ``application/problem+json`` (RFC 9457), and back. One table says which error has which status."""

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
"""The type of the problem of what was sent and is no request: no class of errors stands for it."""

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
    errors.IssuerUnavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.NewerFormat: 503,
    errors.CatalogVersion: 503,
    errors.EnvironmentProblem: 503,
}
"""Of an error, the nearest class on the way to the root counts. A status whose problem has a type that is not known
stands for the first class that has it."""

# Statuses that are answered on the way to the routes, or by proxies.
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
    """``type`` is stable: test for it, not for the texts. Further members may stand beside these."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    request: str | None = None
    """The request's id, also in the answer's ``X-Request-Id`` and in the log."""
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
    """Why an operation failed: what the driver, or the supervisor for it, has said."""
    known = re.fullmatch(r"[a-z][a-z0-9-]*", failure.type)
    return Problem(
        type=PREFIX + (failure.type if known else "execution-failed"),
        title="Execution failed",
        status=500,
        detail=f"{failure.type}: {failure.message}",
        failure=failure.model_dump(exclude_none=True),
    )


def error_of_problem(problem: Problem) -> errors.EpochalError:
    """The exception that a problem document stands for, with its message; validation errors are listed in it.

    A slug that is not known here is taken for what its status means.
    """
    return _named(problem) or _MEANINGS.get(problem.status, errors.EpochalError)(_message(problem))


def error_of_response(response: httpx.Response) -> errors.EpochalError:
    """The exception for an answer with an error status. The body must have been read."""
    problem = problem_in(response)
    return _foreign(response) if problem is None else error_of_problem(problem)


def error_by_name(response: httpx.Response) -> errors.EpochalError:
    """As :func:`error_of_response`, but guesses nothing from the status: ``EpochalError`` for what is not known here.

    For callers that act on the class: a proxy's 404 does not say that an epoch is not there.
    """
    problem = problem_in(response)
    if problem is None:
        return errors.EpochalError(_foreign(response).message)
    return _named(problem) or errors.EpochalError(_message(problem))


def problem_in(response: httpx.Response) -> Problem | None:
    """The problem document in an answer; ``None``: somebody else has answered. All members but ``type`` may be missing,
    and there may be further ones."""
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
        f"{response.request.url} answered {response.status_code} {response.reason_phrase}, as no control plane of "
        "Epochal does; check the URL (EPOCHAL_URL)."
    )
