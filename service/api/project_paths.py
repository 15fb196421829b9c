"""Paths of projects: ``/v1/projects/pricing/applications/orders`` is ``/v1/applications/pricing.orders`` from here on.

Everything behind this knows full names only, and the gate judges by the project that such a name says: so no path leads
to what belongs to another project than the one that was judged, however it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.errors import NotFound
from epochal.wire.projects import DEFAULT_PROJECT, OF_PROJECTS, full_name, is_full_name, is_project, project_of

_PROJECT, _CALLED = "project", "called_path"
_NOTHING = ""
"""In place of a project: the path names what can be nothing of any."""


class ProjectPaths:
    """ASGI middleware, the outermost one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope if scope["type"] != "http" else _of_project(scope), receive, send)


def _of_project(scope: Scope) -> Scope:
    """The same request by full names. The server's own scope stays as it is: it is what the access log shows."""
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
    """The path as it was called."""
    called: str = scope.get("state", {}).get(_CALLED, scope["path"])
    return called


def project_in(scope: Mapping[str, Any]) -> str:
    """The project that a request is about. Raises ``NotFound`` where its path names nothing that can be."""
    project: str = scope.get("state", {}).get(_PROJECT, DEFAULT_PROJECT)
    if project == _NOTHING:
        raise NotFound(f"There is nothing at {called_path(scope)}: names of applications have no dot.")
    return project


def audited_project(scope: Mapping[str, Any]) -> str:
    """Whose audit log has the request: that of ``default`` where its path names nothing that can be."""
    return str(scope.get("state", {}).get(_PROJECT) or DEFAULT_PROJECT)


def _project(request: Request) -> str:
    return project_in(request.scope)


InProject = Annotated[str, Depends(_project)]
"""The project that a request is about, for endpoints of what has no full name."""
