"""Conversion of errors to problem+json answers (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from epochal.errors import (
    CallInProgress,
    CatalogUnavailable,
    EpochalError,
    IssuerUnavailable,
    OutcomeUnknown,
    QueryRefused,
    TooManyRequests,
    Unauthenticated,
)
from epochal.secrets import redact
from epochal.service.api.bodies import BodyRefused
from epochal.service.api.project_paths import called_path
from epochal.wire.problems import MEDIA_TYPE, PREFIX, FieldError, Problem, problem_of, status_of

logger = logging.getLogger("epochal.requests")

_PARTS_OF_A_REQUEST = ("body", "query", "path", "header")


def install(app: FastAPI) -> None:
    app.add_exception_handler(EpochalError, epochal_problem)
    app.add_exception_handler(RequestValidationError, validation_problem)
    app.add_exception_handler(HTTPException, _http)


async def epochal_problem(request: Request, error: Exception) -> Response:
    """Answer for an ``EpochalError``."""
    error = cast(EpochalError, error)
    further = {"reason": error.reason, "position": error.position} if isinstance(error, QueryRefused) else {}
    problem = problem_of(error, **_context(request), **further)
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, TooManyRequests):
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, CallInProgress):
        headers["retry-after"] = "1"
    if isinstance(error, (CatalogUnavailable, OutcomeUnknown)):
        # Messages of the database driver may contain hosts and users: log them only.
        logger.error("request %s: %s", problem.request, error.message)
        problem = problem.model_copy(update={"detail": f"{type(error)().message} Try again later."})
        headers["retry-after"] = "1"
    elif isinstance(error, IssuerUnavailable):
        headers["retry-after"] = "10"
        logger.warning("request %s: %s", problem.request, error.message)
    elif status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("request %s: %s: %s", problem.request, type(error).__name__, error.message)
    return problem_answer(problem, headers)


async def validation_problem(request: Request, error: Exception) -> Response:
    found = [_field(item) for item in cast(RequestValidationError, error).errors()]
    first = f"{found[0].field}: {found[0].message}" if found else "cannot be parsed"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    problem = Problem(
        type=PREFIX + "invalid-request",
        title="Invalid request",
        status=422,
        detail=f"Invalid request: {first}{more}.",
        errors=found,
        **_context(request),
    )
    return problem_answer(problem)


async def _http(request: Request, error: Exception) -> Response:
    error = cast(HTTPException, error)
    if isinstance(error, BodyRefused):
        return problem_answer(error.problem(**_context(request)), error.headers)
    status = HTTPStatus(error.status_code)
    match status:
        case HTTPStatus.NOT_FOUND:
            slug, detail = "no-such-path", "This path does not exist; /openapi.json lists all paths."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = Headers(error.headers or {}).get("allow", "")
            slug, detail = "method-not-allowed", f"{request.method} is not supported here; supported: {allowed}."
        case _:
            slug, detail = status.phrase.lower().replace(" ", "-"), str(error.detail)
    problem = Problem(type=PREFIX + slug, title=status.phrase, status=status.value, detail=detail, **_context(request))
    return problem_answer(problem, error.headers)


def _field(item: Any) -> FieldError:
    path = [str(part) for part in item["loc"]]
    if len(path) > 1 and path[0] in _PARTS_OF_A_REQUEST:
        path = path[1:]
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        message = "unknown field"
    return FieldError(field=".".join(path), message=message)


def _context(request: Request) -> dict[str, str]:
    return {"instance": called_path(request.scope), "request": request.state.request_id}


def problem_answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    shown = {"detail": redact(problem.detail), "instance": problem.instance and redact(problem.instance)}
    body = problem.model_copy(update=shown).model_dump_json(exclude_none=True)
    return Response(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=dict(headers or {}))
