"""The OpenAPI document: 3.1, with problems and security said once for all."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from starlette.requests import Request
from starlette.responses import JSONResponse

from epochal.service.api.access import access_of, changes_something, public
from epochal.service.api.answers import problem_responses
from epochal.service.domain.permissions import Access
from epochal.wire.problems import Problem

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
