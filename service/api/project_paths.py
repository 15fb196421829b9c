"""Paths of projects: rewrites ``/v1/projects/pricing/applications/orders`` to ``/v1/applications/pricing.orders``.

Everything inside this middleware uses full names only, and the gate checks the role in the project of that name. No
spelling of a path can therefore reach a project other than the one that was checked.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.errors import NotFound
from epochal.wire.projects import (
    DEFAULT_PROJECT,
    OF_PROJECTS,
    full_name,
    is_full_name,
    is_project,
    local_name,
    project_of,
)

_PROJECT, _CALLED = "project", "called_path"
_NOTHING = ""
"""Stands for a project when the path cannot name anything."""


class ProjectPaths:
    """ASGI middleware. Must be the outermost one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope if scope["type"] != "http" else _of_project(scope), receive, send)


def _of_project(scope: Scope) -> Scope:
    """The same request with full names. The server's own scope is unchanged, for the access log."""
    called: str = scope["path"]
    raw: bytes | None = scope.get("raw_path")
    project, segments = DEFAULT_PROJECT, called.split("/")
    if segments[:3] == ["", "v1", "projects"] and len(segments) > 3 and is_project(segments[3]):
        project = segments[3]
        if len(segments) > 4 and segments[4] in OF_PROJECTS:
            segments = ["", "v1", *segments[4:]]
            if segments[2] == "applications" and len(segments) > 3:
                segments[3] = full_name(project, segments[3])
            raw = None if raw is None else b"/".join([b"", b"v1", *raw.split(b"/")[4:]])
    if segments[:3] == ["", "v1", "applications"] and len(segments) > 3 and "." in segments[3]:
        project = project_of(segments[3]) if is_full_name(segments[3]) else _NOTHING
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    state[_PROJECT], state[_CALLED] = project, called
    return {**scope, "path": "/".join(segments), "raw_path": raw}


def called_path(scope: Mapping[str, Any]) -> str:
    """The path as sent by the client."""
    called: str = scope.get("state", {}).get(_CALLED, scope["path"])
    return called


def project_in(scope: Mapping[str, Any]) -> str:
    """The project of a request. Raises ``NotFound`` if its path cannot name anything."""
    project: str = scope.get("state", {}).get(_PROJECT, DEFAULT_PROJECT)
    if project == _NOTHING:
        raise NotFound(f"{called_path(scope)} does not exist: names of applications contain no dot.")
    return project


def audited_project(scope: Mapping[str, Any]) -> str:
    """The project whose audit log records the request: ``default`` if its path cannot name anything."""
    return str(scope.get("state", {}).get(_PROJECT) or DEFAULT_PROJECT)


def application_in(scope: Mapping[str, Any]) -> str | None:
    """Name within its project of the application in the path of a request; ``None`` for other resources."""
    segments = scope["path"].split("/")
    if segments[:3] != ["", "v1", "applications"] or len(segments) < 4:
        return None
    name = segments[3]
    return local_name(name)[:63] if is_full_name(name) else None


def _project(request: Request) -> str:
    return project_in(request.scope)


InProject = Annotated[str, Depends(_project)]
"""The project of a request, for resources without full names."""
