"""The OpenAPI document: 3.1, with problems and security said once for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from starlette.requests import Request
from starlette.responses import JSONResponse

from epochal import errors
from epochal.service.api.access import access_of, changes_something, is_metered, public
from epochal.service.catalog.idempotency import IdempotencyKeyReused
from epochal.service.domain.permissions import Access
from epochal.wire.problems import BAD_REQUEST, MEDIA_TYPE, PREFIX, Problem, status_of

BINARY_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Repeating a call with its key answers as the first call did, for a day, and does nothing. While "
    "the first call is being worked on: 409 `call-in-progress`, with `Retry-After`. When nobody has its answer: it is "
    "made again if it changed nothing, otherwise 409 `call-outcome-unknown`.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}
_REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "The request's id in logs and audit, where it is 1 to 64 letters, digits, dots, dashes and "
    "underscores; else the control plane makes one.",
    "schema": {"type": "string"},
}
_ANSWERED_ID = {"description": "The request's id, as logs and problems have it.", "schema": {"type": "string"}}
_DESCRIPTION = """Epochal runs streaming applications on Spark as sequences of epochs.

Errors are `application/problem+json` (RFC 9457) with a stable `type`. Lists are paged by `cursor`. Every answer carries
`X-Request-Id`, the caller's own where it sent one, under which the control plane's log has it. Roles: viewer <
operator < author < admin; submitting code needs author, and is code execution.

What belongs to projects (applications, artifacts, imports, preflight, operations, events, webhooks, tokens, audit) is,
of a project, at `/v1/projects/{project}/..`: the same paths, bodies and answers, and the role is that in the project.
The paths that are listed here mean the project `default`.
"""


def install(app: FastAPI, version: str) -> None:
    """The document is made once, when it is first asked for. ``app`` has no route to it of its own: FastAPI's makes it
    in the event loop, and nobody else would be answered for half a second."""

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
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update(problem.pop("$defs", {}))
    components["schemas"]["Problem"] = problem
    components.setdefault("headers", {})["RequestId"] = _ANSWERED_ID
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": "See /v1/tokens."}}
    for route in iter_route_contexts(app.routes):
        for method in route.methods or ():
            operation = schema["paths"].get(route.path_format, {}).get(method.lower())
            if operation is not None:
                _complete(operation, method, route.endpoint)
    return schema


def _complete(operation: dict[str, Any], method: str, endpoint: object) -> None:
    access = access_of(endpoint)
    operation["responses"].pop("422", None)
    operation["responses"] |= problem_responses(endpoint, method, operation)
    if access is not None and access is not Access.PUBLIC:
        operation["security"] = [{"token": []}]
        operation["x-role"] = access.value
    operation.setdefault("parameters", []).append(_REQUEST_ID)
    for response in operation["responses"].values():
        response.setdefault("headers", {})["X-Request-Id"] = {"$ref": "#/components/headers/RequestId"}
    if changes_something(endpoint) and method != "GET":
        operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)


Errors = tuple[type[errors.EpochalError], ...]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

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
)
"""Of calls that build an author's pipeline."""

SNAPSHOT: Errors = (errors.InvalidInput, errors.SnapshotExpired)
"""Of calls that name a snapshot."""

FILES: Errors = (
    errors.SnapshotError,
    errors.FileCorrupt,
    errors.FileMissing,
    errors.ForeignFile,
    errors.NewerFormat,
    errors.SchemaError,
)
"""Of calls that read a snapshot's files."""

_ATTRIBUTE = "__epochal_answers__"
_INTERNAL = (500, "internal", "Something unforeseen; the control plane's log has it under the request's id.")
_INVALID_REQUEST = (422, "invalid-request", "A parameter or a field of the body is not valid; `errors` names them.")
_NO_SUCH_PATH = (404, "no-such-path", "A name in the path has a character that no name has.")
_UNREADABLE = (HTTPStatus.BAD_REQUEST, BAD_REQUEST, "The request or its body cannot be decoded.")
_BODY = (
    (400, "body-incomplete", "The connection ended within the body."),
    (408, "request-too-slow", "The body came too slowly."),
    (413, "body-too-large", "The body is larger than what is taken here."),
    (503, "too-many-bodies", "The bodies of the requests in progress fill their memory; see `Retry-After`."),
)
_OF_CONNECTIONS = frozenset({"head-too-large", "too-many-connections"})
WITHOUT_AN_ERROR = _OF_CONNECTIONS | {
    slug for _, slug, _ in (_INTERNAL, _UNREADABLE, _INVALID_REQUEST, _NO_SUCH_PATH, *_BODY)
}
"""Types of problems that no class of errors stands for: they end a request before, or in spite of, any endpoint."""


def answers(*problems: type[errors.EpochalError]) -> Callable[[Endpoint], Endpoint]:
    """The endpoint can answer with these, besides what follows from its shape. Stands below the route decorator."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, problems)
        return endpoint

    return mark


def problem_responses(endpoint: object, method: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI responses by status, with the types of the problems of each. ``operation``: as FastAPI describes it."""
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
