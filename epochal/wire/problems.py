"""Errors as ``application/problem+json`` (RFC 9457). One table says which error has which status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from epochal import errors
from epochal.contracts.catalog import Failure

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:epochal:problem:"

STATUSES: Mapping[type[errors.EpochalError], int] = {
    errors.EpochalError: 500,
    errors.InvalidInput: 422,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.SnapshotExpired: 410,
    errors.NotYetCommitted: 409,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.EpochAborted: 422,
    errors.Fenced: 409,
    errors.TooManyRequests: 429,
    errors.OutcomeUnknown: 503,
    errors.NewerFormat: 503,
    errors.CatalogUnavailable: 503,
    errors.CatalogVersion: 503,
    errors.EnvironmentProblem: 503,
}
"""The nearest class on the way to the root counts."""


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
