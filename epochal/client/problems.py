"""Problem documents (RFC 9457) back into the exceptions they were made from."""

from __future__ import annotations

import httpx
from pydantic import ValidationError

from epochal.client.models import Problem
from epochal.errors import (
    CatalogUnavailable,
    Conflict,
    EpochalError,
    Forbidden,
    InvalidInput,
    NotFound,
    SnapshotExpired,
    TooManyRequests,
    Unauthenticated,
    error_class,
)

PREFIX = "urn:epochal:problem:"

# What a status means when its slug is one that this version does not know.
_BY_STATUS: dict[int, type[EpochalError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: SnapshotExpired,
    413: InvalidInput,
    422: InvalidInput,
    429: TooManyRequests,
    502: CatalogUnavailable,
    503: CatalogUnavailable,
    504: CatalogUnavailable,
}


def error_of_problem(problem: Problem) -> EpochalError:
    """The exception that a problem document stands for, with its message; validation errors are listed in it.

    A slug that is not known here is taken for what its status means.
    """
    return _named(problem) or _BY_STATUS.get(problem.status, EpochalError)(_message(problem))


def error_of_response(response: httpx.Response) -> EpochalError:
    """The exception for an answer with an error status. The body must have been read."""
    problem = problem_in(response)
    return _foreign(response) if problem is None else error_of_problem(problem)


def error_by_name(response: httpx.Response) -> EpochalError:
    """As :func:`error_of_response`, but guesses nothing from the status: ``EpochalError`` for what is not known here.

    For callers that act on the class: a proxy's 404 does not say that an epoch is not there.
    """
    problem = problem_in(response)
    if problem is None:
        return EpochalError(_foreign(response).message)
    return _named(problem) or EpochalError(_message(problem))


def problem_in(response: httpx.Response) -> Problem | None:
    """The problem document in an answer; ``None``: somebody else has answered."""
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return None


def slug_of(problem: Problem) -> str:
    return problem.type.removeprefix(PREFIX)


def _named(problem: Problem) -> EpochalError | None:
    kind = error_class(slug_of(problem))
    return None if kind is None else kind(_message(problem))


def _message(problem: Problem) -> str:
    message = problem.detail or problem.title or f"The control plane answered with status {problem.status}."
    unsaid = [error for error in problem.errors or () if str(error.get("message")) not in message]
    fields = "; ".join(f"{error.get('field')}: {error.get('message')}" for error in unsaid)
    return f"{message} ({fields})" if fields else message


def _foreign(response: httpx.Response) -> EpochalError:
    kind = _BY_STATUS.get(response.status_code, EpochalError)
    return kind(
        f"{response.request.url} answered {response.status_code} {response.reason_phrase}, as no control plane of "
        "Epochal does; check the URL (EPOCHAL_URL)."
    )
