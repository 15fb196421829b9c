"""The OpenAPI document: version 3.1, with problems and security declared once for all operations.

:func:`answers` declares beside each endpoint which problems it can return. Problems that follow from an operation's
shape (a required token, names in the path, a body, a cursor, the catalog) are added automatically.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse

from epochal import errors
from epochal.service.api.access import access_of, changes_something, is_metered, public
from epochal.service.catalog.idempotency import IdempotencyKeyReused
from epochal.service.domain.permissions import Access
from epochal.wire.problems import BAD_REQUEST, MEDIA_TYPE, PREFIX, Problem, status_of
from epochal.wire.sessions import CSRF_HEADER

_REFERENCE = "#/components/schemas/{model}"
BINARY_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Repeating a call with its key within a day returns the first answer and has no effect. While the "
    "first call is in progress: 409 `call-in-progress`, with `Retry-After`. If the first answer was "
    "lost, the call is executed again if it changed nothing; otherwise 409 `call-outcome-unknown`.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}
_REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "Id of the request in logs and audit: 1 to 64 letters, digits, dots, dashes and underscores. "
    "Otherwise the control plane generates one.",
    "schema": {"type": "string"},
}
_ANSWERED_ID = {"description": "Id of the request in logs and problems.", "schema": {"type": "string"}}
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "See /v1/tokens."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-epochal-session",
        "description": "See /v1/session. At http addresses of loopback: `epochal-session-` and the port. POST, PUT, "
        f"PATCH and DELETE also require the header `{CSRF_HEADER}`. Ignored in requests with `Authorization`.",
    },
}
_DESCRIPTION = """Epochal runs streaming applications on Spark as sequences of epochs.

Errors are `application/problem+json` (RFC 9457) with a stable `type`. Lists are paged by `cursor`. Every answer carries
`X-Request-Id`, which also identifies the request in the control plane's log; a caller may choose it. Roles: viewer <
operator < author < admin. Submitting code executes it, and requires author.

Resources of a project (applications, artifacts, imports, preflight, operations, events, webhooks, tokens, audit) are at
`/v1/projects/{project}/..`, with the same paths, bodies and answers; the required role is the role in that project.
The paths listed here refer to the project `default`.
"""


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Description of a JSON body that the endpoint itself parses."""
    schema = model.model_json_schema(ref_template=_REFERENCE)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI, version: str) -> None:
    """Serve the document, generated once at the first request. ``app`` has no route of FastAPI's own: that would
    generate the document in the event loop and block it for half a second."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, version)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    app.add_route("/openapi.json", _answer, include_in_schema=False)


@public
def _answer(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


def _document(app: FastAPI, version: str) -> dict[str, Any]:
    schema = get_openapi(
        title="Epochal", version=version, openapi_version="3.1.0", description=_DESCRIPTION, routes=app.routes
    )
    components = schema.setdefault("components", {})
    problem = Problem.model_json_schema(ref_template=_REFERENCE)
    components.setdefault("schemas", {}).update(problem.pop("$defs", {}))
    components["schemas"]["Problem"] = problem
    components.setdefault("headers", {})["RequestId"] = _ANSWERED_ID
    components["securitySchemes"] = _SECURITY
    for route in iter_route_contexts(app.routes):
        for method in route.methods or ():
            operation = schema["paths"].get(route.path_format, {}).get(method.lower())
            if operation is not None:
                components["schemas"].update(_definitions(operation))
                _complete(operation, method, route.endpoint)
    return schema


def _definitions(operation: Mapping[str, Any]) -> dict[str, Any]:
    """Take the definitions out of the body of an operation; references name them among those of the document."""
    found: dict[str, Any] = {}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        found.update(content.get("schema", {}).pop("$defs", {}))
    return found


def _complete(operation: dict[str, Any], method: str, endpoint: object) -> None:
    access = access_of(endpoint)
    operation["responses"].pop("422", None)
    operation["responses"] |= problem_responses(endpoint, method, operation)
    if access is not None and access is not Access.PUBLIC:
        operation["security"] = [{"token": []}, *([] if access in (Access.DRIVER, Access.POD) else [{"session": []}])]
        operation["x-role"] = access.value
    operation.setdefault("parameters", []).append(_REQUEST_ID)
    for response in operation["responses"].values():
        response.setdefault("headers", {})["X-Request-Id"] = {"$ref": "#/components/headers/RequestId"}
    if changes_something(endpoint) and method != "GET":
        operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)


Errors = tuple[type[errors.EpochalError], ...]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

STORE: Errors = (errors.StoreUnavailable, errors.StoreRefuses)
"""Errors of calls that use the store."""

BUILDING: Errors = (
    errors.InvalidInput,
    errors.PipelineError,
    errors.ParameterError,
    errors.ArtifactError,
    errors.SchemaError,
    errors.OptionError,
    errors.InvalidKey,
    errors.AuthorError,
    errors.TooManyRequests,
    errors.EnvironmentProblem,
    *STORE,
)
"""Errors of calls that build an author's pipeline."""

SNAPSHOT: Errors = (errors.InvalidInput, errors.SnapshotExpired)
"""Errors of calls that name a snapshot."""

FILES: Errors = (
    errors.SnapshotError,
    errors.FileCorrupt,
    errors.FileMissing,
    errors.ForeignFile,
    errors.NewerFormat,
    errors.SchemaError,
    *STORE,
)
"""Errors of calls that read a snapshot's files."""

_ATTRIBUTE = "__epochal_answers__"
_INTERNAL = (500, "internal", "Unexpected error; the control plane's log has the details under the request's id.")
_INVALID_REQUEST = (422, "invalid-request", "A parameter or a field of the body is invalid; `errors` lists them.")
_NO_SUCH_PATH = (404, "no-such-path", "A name in the path has an invalid character.")
_UNREADABLE = (HTTPStatus.BAD_REQUEST, BAD_REQUEST, "The request or its body cannot be decoded.")
_BODY = (
    (400, "body-incomplete", "The connection ended before the end of the body."),
    (408, "request-too-slow", "The body arrived too slowly."),
    (413, "body-too-large", "The body exceeds the maximum size."),
    (503, "too-many-bodies", "The memory for request bodies is in use; see `Retry-After`."),
)
_OF_CONNECTIONS = frozenset({"head-too-large", "too-many-connections"})
WITHOUT_AN_ERROR = _OF_CONNECTIONS | {
    slug for _, slug, _ in (_INTERNAL, _UNREADABLE, _INVALID_REQUEST, _NO_SUCH_PATH, *_BODY)
}
"""Types of problems without an error class: they end a request before any endpoint, or in spite of it."""


def answers(*problems: type[errors.EpochalError]) -> Callable[[Endpoint], Endpoint]:
    """Declare the errors that the endpoint can return, besides those that follow from its shape. Goes below the
    route decorator."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, problems)
        return endpoint

    return mark


def problem_responses(endpoint: object, method: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI responses by status, with the types of problems of each. ``operation``: FastAPI's description."""
    by_status: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for status, slug, meaning in _problems(endpoint, method, operation):
        by_status[status].setdefault(slug, meaning)
    return {str(status): _response(status, slugs) for status, slugs in sorted(by_status.items())}


def _problems(endpoint: object, method: str, operation: Mapping[str, Any]) -> Iterable[tuple[int, str, str]]:
    yield _INTERNAL
    yield _UNREADABLE
    for error in (*_of_shape(endpoint, method, operation), *getattr(endpoint, _ATTRIBUTE, ())):
        yield status_of(error()), error.slug, (error.__doc__ or "").strip()
    parameters = operation.get("parameters", ())
    access = access_of(endpoint)
    if parameters or "requestBody" in operation or (access is not None and access.role is not None):
        yield _INVALID_REQUEST
    if any(parameter["in"] == "path" for parameter in parameters):
        yield _NO_SUCH_PATH
    if "requestBody" in operation:
        yield from _BODY


def _of_shape(endpoint: object, method: str, operation: Mapping[str, Any]) -> Iterable[type[errors.EpochalError]]:
    access = access_of(endpoint)
    parameters = operation.get("parameters", ())
    if access is not Access.PUBLIC:
        yield errors.Unauthenticated
        yield errors.Forbidden
        yield errors.CatalogUnavailable
    if access is Access.MEMBER or (access is not None and access.role is not None):
        yield errors.IssuerUnavailable
        if is_metered(endpoint):
            yield errors.TooManyRequests
    if access in (Access.DRIVER, Access.POD):
        yield from (errors.Fenced, errors.Conflict, errors.OutcomeUnknown)
    if any(parameter["in"] == "path" for parameter in parameters):
        yield errors.NotFound
    if any(parameter["name"] == "cursor" for parameter in parameters):
        yield errors.InvalidCursor
    if changes_something(endpoint) and method != "GET":
        yield from (errors.OutcomeUnknown, errors.Conflict, errors.InvalidInput, IdempotencyKeyReused)
        yield from (errors.CallInProgress, errors.CallOutcomeUnknown)


def _response(status: int, slugs: Mapping[str, str]) -> dict[str, Any]:
    described = "\n".join(f"- `{slug}`: {meaning}" for slug, meaning in slugs.items())
    types = {"properties": {"type": {"enum": [PREFIX + slug for slug in slugs]}}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, types]}
    return {"description": f"{HTTPStatus(status).phrase}.\n\n{described}", "content": {MEDIA_TYPE: {"schema": schema}}}
