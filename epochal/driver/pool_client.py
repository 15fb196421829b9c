"""Client of a pooled pod for the control plane that supervises it, authenticated by the cluster's token for the pod."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import httpx

from epochal.driver.orders import CONTROL_PLANES_VARIABLE, TOKEN_FILE_VARIABLE
from epochal.errors import EnvironmentProblem
from epochal.wire.problems import problem_in
from epochal.wire.trust import trusted

PATIENCE_SECONDS = 30.0
"""Timeout for answers of the control plane; after it the control plane counts as lost and the pod as not needed."""
OTHERS_SECONDS = 10.0
"""Timeout for finding it behind an address at which other control planes, which lack this pod, answer."""
_PAUSE_SECONDS, _OTHER_SECONDS = 0.5, 0.2
_ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 2.0
_ENDS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class PodNotNeeded(Exception):
    """No control plane supervises this pod (any more), or waits for its work."""


class PodClient:
    """Client for the control plane that supervises this pod. Every method raises :class:`PodNotNeeded`. Thread-safe."""

    def __init__(
        self,
        url: str,
        pod: str,
        token_file: Path,
        patience_seconds: float = PATIENCE_SECONDS,
        others_seconds: float = OTHERS_SECONDS,
    ) -> None:
        """``token_file``: read for each call, since the node renews its content."""
        self._url = f"{url.rstrip('/')}/internal/v1/pods/{pod}/"
        self._token_file = token_file
        self._patience_seconds = patience_seconds
        self._others_seconds = others_seconds
        self._connections = threading.local()

    @classmethod
    def of(cls, pod: str, environment: Mapping[str, str]) -> Self:
        """Build the client from the pod's environment. Raises ``EnvironmentProblem`` if this is not a pooled pod."""
        try:
            return cls(environment[CONTROL_PLANES_VARIABLE].split()[0], pod, Path(environment[TOKEN_FILE_VARIABLE]))
        except (KeyError, IndexError) as error:
            raise EnvironmentProblem(
                f"The environment of a pooled pod lacks {CONTROL_PLANES_VARIABLE} or {TOKEN_FILE_VARIABLE}, which its "
                f"control plane sets: {error!r}."
            ) from None

    def work(self, ready: bool, seconds: float) -> bytes | None:
        """Wait for work and return it; ``None``: no work arrived within ``seconds``."""
        answer = self._call("GET", f"work?ready={str(ready).lower()}&seconds={seconds:g}")
        return answer.content if answer.status_code == HTTPStatus.OK else None

    def check_needed(self) -> None:
        self._call("GET", "needed")

    def artifact(self, sha256: str) -> bytes:
        """The bytes of an artifact, unverified."""
        return self._call("GET", f"artifacts/{sha256}").content

    def answer(self, content: bytes) -> None:
        self._call("PUT", "answer", content)

    def _call(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        began = time.monotonic()
        while True:
            patience, pause = self._patience_seconds, _PAUSE_SECONDS
            try:
                headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
                answer = self._connection().request(method, self._url + path, content=content, headers=headers)
            except (httpx.TransportError, OSError) as error:
                why = repr(error)
            else:
                if answer.is_success:
                    return answer
                why = _said(answer)
                if answer.status_code in _ENDS:
                    raise PodNotNeeded(f"The control plane does not need this pod: {why}")
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    patience, pause = self._others_seconds, _OTHER_SECONDS
            self._leave()
            if time.monotonic() - began >= patience:
                raise PodNotNeeded(f"No control plane that supervises this pod has answered for {patience:g} s: {why}")
            time.sleep(pause)

    def _connection(self) -> httpx.Client:
        """This thread's connection, which stays with the control plane that it has reached."""
        found: httpx.Client | None = getattr(self._connections, "found", None)
        if found is None:
            # The environment's proxies are for external addresses; the control plane is internal.
            timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
            found = self._connections.found = httpx.Client(timeout=timeout, trust_env=False, verify=trusted())
        return found

    def _leave(self) -> None:
        """Close this thread's connection. One address may lead to several control planes, one of which supervises this
        pod: a new connection may reach it."""
        self._connection().close()
        self._connections.found = None


def _said(answer: httpx.Response) -> str:
    problem = problem_in(answer)
    detail = answer.text[:300] if problem is None else problem.detail
    return f"{detail} (HTTP status {answer.status_code})"
