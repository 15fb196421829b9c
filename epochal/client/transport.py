"""Transport of client calls to one control plane over persistent connections, blocking and asynchronous."""

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
"""Context manager around each request and its retries; its argument is the control plane's URL."""


class Transport:
    """Requests to one control plane. Thread-safe. :class:`~epochal.client.exchanges.Patience` defines the retries."""

    def __init__(self, location: Location, timeout_seconds: float, waiting: Waiting = nullcontext) -> None:
        self.location = location
        self._waiting = waiting
        # A proxy from the environment can never reach this machine's own loopback interface.
        self._calls = HttpCalls(
            ControlPlanes([location.url]), _headers(location), timeout_seconds, trust_environment=not location.loopback
        )

    def of_project(self, project: str) -> Transport:
        """Return a transport for another project over the same connections. Close only the original."""
        other = copy(self)
        other.location = replace(self.location, project=project)
        return other

    def close(self) -> None:
        self._calls.close()

    def run(self, exchange: Exchange[Result]) -> Result:
        """Run the exchange's requests, and return its result."""
        try:
            request = next(exchange)
            while True:
                request = exchange.send(self.send(request))
        except StopIteration as end:
            return cast(Result, end.value)

    def send(self, request: Request) -> httpx.Response:
        """Send a request, and return a successful answer. Raises the error of any other answer, and
        ``CatalogUnavailable``."""
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
        """The JSON answer to a POST of a JSON object without the members that are ``None``."""
        return document(self.send(posted(path, body, timeout_seconds=timeout_seconds, if_match=if_match)))

    def query(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout_seconds: float | None = None,
        parameters: Query | None = None,
    ) -> Any:
        """Variant of :meth:`post` without an ``Idempotency-Key``, for calls that change nothing or are idempotent by
        content."""
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
        """The answer to a GET as text, for content other than JSON."""
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
        """The items of a paged list, at most ``limit`` or all. ``member``: a further member of the pages to collect."""
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
        """A streamed answer, without a timeout between its parts."""
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
        """See :meth:`Transport.run`."""
        try:
            request = next(exchange)
            while True:
                request = exchange.send(await self.send(request))
        except StopIteration as end:
            return cast(Result, end.value)

    async def send(self, request: Request) -> httpx.Response:
        """See :meth:`Transport.send`."""
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
