"""Calls of people's programs: one control plane, over kept connections, in either flavour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, cast

import httpx

from epochal.client.exchanges import (
    ACCEPTED,
    PAGE,
    Exchange,
    Patience,
    Query,
    Request,
    Result,
    asked,
    document,
    posted,
    present,
    succeeded,
    unavailable,
)
from epochal.client.location import Location
from epochal.wire.bodies import Model, read
from epochal.wire.http import AsyncHttpCalls, ControlPlanes, HttpCalls
from epochal.wire.problems import error_of_response
from epochal.wire.projects import path_in

Waiting = Callable[[str], AbstractContextManager[object]]
"""A context around each request and its repetitions; its argument is the control plane's URL."""


class Transport:
    """Requests to one control plane. Thread-safe, as the pool below it is. :class:`~epochal.client.exchanges.Patience`
    says what is repeated."""

    def __init__(self, location: Location, timeout_seconds: float, waiting: Waiting = nullcontext) -> None:
        self.location = location
        self._waiting = waiting
        # A proxy from the environment can never reach this machine's own loopback interface.
        self._calls = HttpCalls(
            ControlPlanes([location.url]), _headers(location), timeout_seconds, trust_environment=not location.loopback
        )

    def of_project(self, project: str) -> Transport:
        """The same connections, where another project is meant. Close this one only."""
        other = copy(self)
        other.location = replace(self.location, project=project)
        return other

    def close(self) -> None:
        self._calls.close()

    def run(self, exchange: Exchange[Result]) -> Result:
        """Its result, after the requests that it makes."""
        try:
            request = next(exchange)
            while True:
                request = exchange.send(self.send(request))
        except StopIteration as end:
            return cast(Result, end.value)

    def send(self, request: Request) -> httpx.Response:
        """A successful answer. Raises the error that any other one stands for; ``CatalogUnavailable``."""
        try:
            with self._waiting(self.location.url):
                response = self._calls.call(
                    request.method,
                    path_in(self.location.project, request.path),
                    Patience(),
                    query=request.parameters,
                    content=request.content,
                    headers=request.headers(),
                    timeout=request.timeout_seconds,
                )
        except httpx.TransportError as error:
            raise unavailable(self.location.url, error) from error
        return succeeded(response)

    def get(self, path: str, query: Query | None = None, timeout_seconds: float | None = None) -> Any:
        """The JSON answer to a GET."""
        return document(self.send(asked(path, query, timeout_seconds)))

    def post(
        self, path: str, body: Mapping[str, Any], timeout_seconds: float | None = None, if_match: str | None = None
    ) -> Any:
        """The JSON answer to a POST of a JSON object; members that are ``None`` are left out."""
        return document(self.send(posted(path, body, timeout_seconds=timeout_seconds, if_match=if_match)))

    def query(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout_seconds: float | None = None,
        parameters: Query | None = None,
    ) -> Any:
        """As :meth:`post`, where the call changes nothing, or is repeated by what is in it: without an
        ``Idempotency-Key``."""
        request = posted(path, body, query=parameters, timeout_seconds=timeout_seconds, changes=False)
        return document(self.send(request))

    def upload(self, path: str, query: Query, content: bytes) -> Any:
        """The JSON answer to a POST of raw bytes."""
        return document(self.send(Request("POST", path, query, content, "application/octet-stream")))

    def put(self, path: str, query: Query, content: bytes) -> Any:
        """The JSON answer to a PUT of raw bytes."""
        return document(self.send(Request("PUT", path, query, content, "application/octet-stream")))

    def delete(self, path: str, if_match: str | None = None) -> None:
        self.send(Request("DELETE", path, if_match=if_match))

    def text(self, path: str, query: Query | None = None) -> str:
        """The answer to a GET as text, where it is not JSON."""
        return self.send(asked(path, query)).text

    def pages(
        self,
        path: str,
        model: type[Model],
        limit: int | None,
        query: Query | None = None,
        timeout_seconds: float | None = None,
        member: str = "items",
    ) -> list[Model]:
        """The items of a paged list, at most ``limit`` of them, or all; ``member``: what the pages have beside them."""
        items: list[Model] = []
        cursor: str | None = None
        while limit is None or len(items) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(items))
            answer = self.get(path, {**(query or {}), "limit": size, "cursor": cursor}, timeout_seconds)
            items.extend(read(model, item) for item in answer.get(member, ()))
            cursor = answer.get("next_cursor")
            if cursor is None:
                break
        return items

    @contextmanager
    def stream(
        self, path: str, query: Query | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """An answer that is read while it comes, without a time limit between its parts."""
        timeout = httpx.Timeout(self._calls.timeout.connect, read=None)
        try:
            with self._waiting(self.location.url):
                response = self._calls.once(
                    "GET",
                    path_in(self.location.project, path),
                    query=present(query),
                    headers=headers,
                    timeout=timeout,
                    stream=True,
                )
        except httpx.TransportError as error:
            raise unavailable(self.location.url, error) from error
        try:
            if response.is_error:
                response.read()
                raise error_of_response(response)
            yield response
        except httpx.TransportError as error:
            raise unavailable(self.location.url, error) from error
        finally:
            response.close()


class AsyncTransport:
    """Asynchronous variant of :class:`Transport` for one event loop. ``connections``: maximum number of concurrent
    calls."""

    def __init__(self, location: Location, timeout_seconds: float, connections: int) -> None:
        self.location = location
        self._calls = AsyncHttpCalls(
            ControlPlanes([location.url]), _headers(location), timeout_seconds, not location.loopback, connections
        )

    async def close(self) -> None:
        await self._calls.close()

    async def run(self, exchange: Exchange[Result]) -> Result:
        """As :meth:`Transport.run`."""
        try:
            request = next(exchange)
            while True:
                request = exchange.send(await self.send(request))
        except StopIteration as end:
            return cast(Result, end.value)

    async def send(self, request: Request) -> httpx.Response:
        """As :meth:`Transport.send`."""
        try:
            response = await self._calls.call(
                request.method,
                path_in(self.location.project, request.path),
                Patience(),
                query=request.parameters,
                content=request.content,
                headers=request.headers(),
                timeout_seconds=request.timeout_seconds,
            )
        except httpx.TransportError as error:
            raise unavailable(self.location.url, error) from error
        return succeeded(response)


def _headers(location: Location) -> dict[str, str]:
    token = {} if location.token is None else {"Authorization": f"Bearer {location.token}"}
    return {"Accept": ACCEPTED, **token}
