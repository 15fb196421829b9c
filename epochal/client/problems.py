"""Problem documents (RFC 9457) back into the exceptions they were made from."""

from __future__ import annotations

from collections.abc import Iterator

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
    """The exception that a problem document stands for, with its message; validation errors are listed in it."""
    slug = problem.type.removeprefix(PREFIX)
    kind = _classes().get(slug) or _BY_STATUS.get(problem.status, EpochalError)
    message = problem.detail or problem.title or f"The control plane answered with status {problem.status}."
    unsaid = [error for error in problem.errors or () if str(error.get("message")) not in message]
    fields = "; ".join(f"{error.get('field')}: {error.get('message')}" for error in unsaid)
    return kind(f"{message} ({fields})" if fields else message)


def error_of_response(response: httpx.Response) -> EpochalError:
    """The exception for an answer with an error status. The body must have been read."""
    try:
        return error_of_problem(Problem.model_validate_json(response.content))
    except ValidationError:
        kind = _BY_STATUS.get(response.status_code, EpochalError)
        return kind(
            f"{response.request.url} answered {response.status_code} {response.reason_phrase}, as no control plane of "
            "Epochal does; check the URL (EPOCHAL_URL)."
        )


def _classes() -> dict[str, type[EpochalError]]:
    """Every error class there is now, by slug. Of classes that share one, the class that declares it wins."""
    return {kind.slug: kind for kind in _descendants(EpochalError) if "slug" in vars(kind)}


def _descendants(kind: type[EpochalError]) -> Iterator[type[EpochalError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _descendants(child)
