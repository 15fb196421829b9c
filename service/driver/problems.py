"""Problem documents (RFC 9457) back into the error classes that they were made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import httpx

from epochal.errors import CatalogUnavailable, EpochalError, OutcomeUnknown

TYPE_PREFIX = "urn:epochal:problem:"
_REPEAT_STATUS = frozenset({429, 500, 502, 503, 504})
_REPEAT_SLUGS = frozenset({CatalogUnavailable.slug, OutcomeUnknown.slug})


def worth_repeating(response: httpx.Response) -> bool:
    """Whether the same call may get another answer later: nobody is there, or nobody knows."""
    return response.status_code in _REPEAT_STATUS or _slug(response) in _REPEAT_SLUGS


def from_response(response: httpx.Response) -> EpochalError:
    """The error that the answer stands for; ``EpochalError`` itself when its slug is not known here."""
    try:
        detail = json.loads(response.content).get("detail")
    except (ValueError, AttributeError):
        detail = None
    error = error_class(_slug(response))
    return error(detail or f"The control plane answered {response.status_code} to {response.request.url.path}.")


def error_class(slug: str | None) -> type[EpochalError]:
    """The error class with this slug."""
    return _by_slug().get(slug or "", EpochalError)


def _slug(response: httpx.Response) -> str | None:
    try:
        kind = json.loads(response.content)["type"]
    except (ValueError, KeyError, TypeError):
        return None
    return kind.removeprefix(TYPE_PREFIX) if isinstance(kind, str) else None


@cache
def _by_slug() -> dict[str, type[EpochalError]]:
    return {error.slug: error for error in _family(EpochalError)}


def _family(error: type[EpochalError]) -> Iterator[type[EpochalError]]:
    yield error
    for child in error.__subclasses__():
        yield from _family(child)
