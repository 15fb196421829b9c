"""The one HTTP client that repeats calls: of people's programs, and of drivers.

What is worth repeating, and for how long, is its caller's policy; which control plane is asked next is decided here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

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
        self._http = httpx.Client(headers=dict(headers), timeout=timeout, trust_env=trust_environment)

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
        """The answer to a call of ``path``, or the first one that ``repeating`` takes for final, whatever its status.

        After a lost connection, or what is worth repeating, the next control plane is asked, at once until each was
        asked. ``url``: whom to ask first, instead of the current one. Raises ``httpx.TransportError`` when nobody
        answers.
        """
        asked = url or self.control_planes.current
        tries = 0
        while True:
            outcome: Outcome
            try:
                outcome = self.once(
                    method, path, query=query, content=content, headers=headers, timeout=timeout, url=asked
                )
            except httpx.TransportError as error:
                outcome = error
            else:
                if outcome.is_success:
                    return outcome
            tries += 1
            pause = repeating.pause(outcome)
            if pause is None:
                if isinstance(outcome, httpx.TransportError):
                    raise outcome
                return outcome
            self.control_planes.leave(asked)
            asked = self.control_planes.after(asked)
            if tries % len(self.control_planes) == 0:
                time.sleep(pause)

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
