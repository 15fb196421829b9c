"""HTTP calls with retries and fail-over between control planes, used by the client and by drivers.

Callers decide which outcomes are retried and for how long. This module selects the control plane of each request.
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
    """Retry policy of one call."""

    def pause(self, outcome: Outcome) -> float | None:
        """Seconds until the next request; ``None`` if the outcome is final. Not called for successful outcomes."""


EARLIER_SECONDS = 60.0


class ControlPlanes:
    """Addresses of the control planes of one catalog, and the current one. Thread-safe.

    An address that a new list omits is tried for ``EARLIER_SECONDS`` more, after those of the list. A control plane
    reports only itself while it cannot read the catalog's nodes, and after an outage of the database; if that one then
    fails, its callers still find the others.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._current = self._urls[0]
        self._earlier: dict[str, float] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """The latest list."""
        return self._urls

    def __len__(self) -> int:
        """Number of addresses that :meth:`next_to_try` visits."""
        with self._lock:
            return len(self._urls) + len(self._earlier)

    @property
    def current(self) -> str:
        with self._lock:
            return self._current

    def after(self, url: str) -> str:
        """The next address of the latest list."""
        with self._lock:
            return _after(url, self._urls)

    def next_to_try(self, failed: str) -> str:
        """The address to try after ``failed``, which is no longer the current one."""
        with self._lock:
            following = _after(failed, (*self._urls, *self._earlier))
            if self._current == failed:
                self._current = following
            return following

    def replace(self, urls: Sequence[str]) -> None:
        """Replace the addresses and keep the current one if it is in the list. An empty list changes nothing."""
        latest = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        now = time.monotonic()
        with self._lock:
            if not latest or (latest == self._urls and not self._earlier):
                return
            known = {**self._earlier, **dict.fromkeys(self._urls, now)}
            self._earlier = {
                url: since for url, since in known.items() if url not in latest and now - since < EARLIER_SECONDS
            }
            self._urls = latest
            if self._current not in latest:
                self._current = latest[0]


def _after(url: str, urls: Sequence[str]) -> str:
    place = urls.index(url) + 1 if url in urls else 0
    return urls[place % len(urls)]


class Attempt(NamedTuple):
    """One request of a call. ``url``: base URL of the control plane; ``pause``: seconds to wait before the request."""

    url: str
    pause: float


def attempts(
    control_planes: ControlPlanes, repeating: Repeating, url: str | None = None
) -> Generator[Attempt, Outcome, httpx.Response]:
    """Yield the requests of one call; the caller sends back the outcome of each. Returns the successful answer, or the
    first answer that ``repeating`` declares final.

    After a lost connection or a retriable answer the next control plane follows, without a pause until each one has
    been tried. ``url``: control plane of the first request instead of the current one. Raises ``httpx.TransportError``
    if no control plane answers.
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
        asked = control_planes.next_to_try(asked)
        pause = wait if tries % len(control_planes) == 0 else 0.0


class HttpCalls:
    """Calls to one of several control planes over persistent connections. Thread-safe."""

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
        """Call ``path`` with retries as in :func:`attempts`, and return the answer."""
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
        """Send one request without retries. Raises ``httpx.TransportError``."""
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
    """Asynchronous variant of :class:`HttpCalls` for one event loop. ``connections``: maximum number of connections,
    all persistent. Requests wait without a timeout for a free connection."""

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
            timeout=_timeouts(timeout_seconds),
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
        """Call ``path``; see :meth:`HttpCalls.call`."""
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_seconds is None else _timeouts(timeout_seconds)
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


def _timeouts(seconds: float) -> httpx.Timeout:
    """Timeouts of a request, without a limit on waiting for a free connection."""
    return httpx.Timeout(seconds, pool=None)
