"""The one HTTP client that repeats calls: of people's programs, and of drivers.

What is worth repeating, and for how long, is its caller's policy; which control plane is asked next is decided here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import httpx

from epochal.wire.trust import trusted

Outcome = httpx.Response | httpx.TransportError


class Repeating(Protocol):
    """What one call does about its outcomes; one object for each call."""

    def pause(self, outcome: Outcome) -> float | None:
        """Seconds until the call is repeated; ``None``: the outcome is final. A success is never asked about."""


class ControlPlanes:
    """The addresses of control planes that serve one catalog, and which of them is asked. Safe in several threads."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._current = 0

    @property
    def urls(self) -> tuple[str, ...]:
        return self._urls

    def __len__(self) -> int:
        return len(self._urls)

    @property
    def current(self) -> str:
        with self._lock:
            return self._urls[self._current]

    def after(self, url: str) -> str:
        """The next one in turn."""
        with self._lock:
            place = self._urls.index(url) + 1 if url in self._urls else 0
            return self._urls[place % len(self._urls)]

    def leave(self, url: str) -> None:
        """It has not answered: from now on another one is asked, if this one still was."""
        with self._lock:
            if self._urls[self._current] == url:
                self._current = (self._current + 1) % len(self._urls)

    def replace(self, urls: Sequence[str]) -> None:
        """The list as it is now; the one that is asked stays where it is in it. An empty list changes nothing."""
        latest = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        if not latest or latest == self._urls:
            return
        with self._lock:
            current = self._urls[self._current]
            self._urls = latest
            self._current = latest.index(current) if current in latest else 0


class Attempt(NamedTuple):
    """One request of a call. ``url``: whom it asks; ``pause``: seconds to wait before it."""

    url: str
    pause: float


def attempts(
    control_planes: ControlPlanes, repeating: Repeating, url: str | None = None
) -> Generator[Attempt, Outcome, httpx.Response]:
    """The requests of one call: whoever sends them, says what came of each. The result is the answer, or the first one
    that ``repeating`` takes for final, whatever its status.

    After a lost connection, or what is worth repeating, the next control plane is asked, at once until each was asked.
    ``url``: whom to ask first, instead of the current one. Raises ``httpx.TransportError`` when nobody answers.
    """
    asked = url or control_planes.current
    pause = 0.0
    tries = 0
    while True:
        outcome = yield Attempt(asked, pause)
        tries += 1
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return outcome
        wait = repeating.pause(outcome)
        if wait is None:
            if isinstance(outcome, httpx.TransportError):
                raise outcome
            return outcome
        control_planes.leave(asked)
        asked = control_planes.after(asked)
        pause = wait if tries % len(control_planes) == 0 else 0.0


class HttpCalls:
    """Calls of one of several control planes, over kept connections. Thread-safe."""

    def __init__(
        self,
        control_planes: ControlPlanes,
        headers: Mapping[str, str],
        timeout: httpx.Timeout | float,
        trust_environment: bool,
    ) -> None:
        self.control_planes = control_planes
        self._http = httpx.Client(headers=dict(headers), timeout=timeout, trust_env=trust_environment, verify=trusted())

    @property
    def timeout(self) -> httpx.Timeout:
        return self._http.timeout

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        repeating: Repeating,
        *,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | float | None = None,
        url: str | None = None,
    ) -> httpx.Response:
        """The answer to a call of ``path``, repeated as :func:`attempts` says."""
        outcomes = attempts(self.control_planes, repeating, url)
        attempt = next(outcomes)
        while True:
            if attempt.pause:
                time.sleep(attempt.pause)
            outcome: Outcome
            try:
                outcome = self.once(
                    method, path, query=query, content=content, headers=headers, timeout=timeout, url=attempt.url
                )
            except httpx.TransportError as error:
                outcome = error
            try:
                attempt = outcomes.send(outcome)
            except StopIteration as end:
                return cast(httpx.Response, end.value)

    def once(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | float | None = None,
        url: str | None = None,
        stream: bool = False,
    ) -> httpx.Response:
        """One request, not repeated. Raises ``httpx.TransportError``."""
        request = self._http.build_request(
            method,
            f"{url or self.control_planes.current}{path}",
            params=query,
            content=content,
            headers=headers,
            timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout,
        )
        return self._http.send(request, stream=stream)


class AsyncHttpCalls:
    """As :class:`HttpCalls`, of one event loop. ``connections``: at most so many at once, which are all kept; who finds
    none free waits for one, however long."""

    def __init__(
        self,
        control_planes: ControlPlanes,
        headers: Mapping[str, str],
        timeout_seconds: float,
        trust_environment: bool,
        connections: int,
    ) -> None:
        self.control_planes = control_planes
        self._http = httpx.AsyncClient(
            headers=dict(headers),
            timeout=_of_an_answer(timeout_seconds),
            trust_env=trust_environment,
            verify=trusted(),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        repeating: Repeating,
        *,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> httpx.Response:
        """As :meth:`HttpCalls.call`."""
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_seconds is None else _of_an_answer(timeout_seconds)
        outcomes = attempts(self.control_planes, repeating)
        attempt = next(outcomes)
        while True:
            if attempt.pause:
                await asyncio.sleep(attempt.pause)
            outcome: Outcome
            try:
                outcome = await self._http.request(
                    method, f"{attempt.url}{path}", params=query, content=content, headers=headers, timeout=timeout
                )
            except httpx.TransportError as error:
                outcome = error
            try:
                attempt = outcomes.send(outcome)
            except StopIteration as end:
                return cast(httpx.Response, end.value)


def _of_an_answer(seconds: float) -> httpx.Timeout:
    """That all connections are busy is not the control plane's delay."""
    return httpx.Timeout(seconds, pool=None)
