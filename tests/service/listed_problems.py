"""Checks that every problem a control plane answers is listed for its operation in the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.wire.problems import MEDIA_TYPE


class ListedProblems:
    """ASGI middleware, to be the outermost one. Adds to ``unlisted`` each problem that the document does not list."""

    def __init__(self, app: ASGIApp, document: FastAPI, unlisted: set[str]) -> None:
        self._app = app
        self._document = document
        self._unlisted = unlisted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = _Problem(send)
        await self._app(scope, receive, problem)
        route = getattr(scope.get("route"), "path_format", None)
        if route is None or problem.status < 400:
            return
        paths = await asyncio.to_thread(_paths, self._document)
        operation = paths.get(route, {}).get(scope["method"].lower())
        if operation is not None and problem.type not in listed_problems(operation, str(problem.status)):
            self._unlisted.add(f"{scope['method']} {route}: {problem.status} {problem.type}")


class _Problem:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._body = b""
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status >= 400:
            self._body += message.get("body", b"")
        await self._send(message)

    @property
    def type(self) -> str:
        return str(json.loads(self._body)["type"])


_documents: list[Any] = []


def _paths(app: FastAPI) -> Any:
    """The paths of the OpenAPI document, cached: they are the same for every control plane, and generating them
    takes half a second."""
    if not _documents:
        _documents.append(app.openapi())
    return _documents[0]["paths"]


def listed_problems(operation: Any, status: str) -> list[str]:
    """The types that an operation of the OpenAPI document lists for a status."""
    response = operation["responses"].get(status)
    if response is None or MEDIA_TYPE not in response["content"]:
        return []
    return list(response["content"][MEDIA_TYPE]["schema"]["allOf"][1]["properties"]["type"]["enum"])
