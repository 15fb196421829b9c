"""The control plane that keeps a pod for work, as the pod calls it: with the token that the cluster has made for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import httpx

from epochal.driver.orders import CONTROL_PLANES_VARIABLE, TOKEN_FILE_VARIABLE
from epochal.errors import EnvironmentProblem
from epochal.wire.trust import trusted

PATIENCE_SECONDS = 30.0
"""So long a control plane may be silent; then it is gone, and nobody wants this pod."""
_PAUSE_SECONDS = 0.5
_ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 2.0
_ENDS: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class NotWanted(Exception):
    """Nobody keeps this pod (any more), or waits for what it does."""


class Keeper:
    """Every method raises :class:`NotWanted`. Safe from several threads."""

    def __init__(self, url: str, pod: str, token_file: Path, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """``token_file``: it is read for each call, since the node renews what is in it."""
        self._url = f"{url.rstrip('/')}/internal/v1/pods/{pod}/"
        self._token_file = token_file
        self._patience_seconds = patience_seconds
        # The environment's proxies are for the world outside; the control plane is not there.
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(timeout=timeout, trust_env=False, verify=trusted())

    @classmethod
    def of(cls, pod: str, environment: Mapping[str, str]) -> Self:
        """Raises ``EnvironmentProblem`` where this is no such pod."""
        try:
            return cls(environment[CONTROL_PLANES_VARIABLE].split()[0], pod, Path(environment[TOKEN_FILE_VARIABLE]))
        except (KeyError, IndexError) as error:
            raise EnvironmentProblem(
                f"A pod that is kept for work needs {CONTROL_PLANES_VARIABLE} and {TOKEN_FILE_VARIABLE}, as its "
                f"control plane gives them: {error!r}."
            ) from None

    def work(self, ready: bool, seconds: float) -> bytes | None:
        """What there is to do; ``None``: nothing came within so many seconds."""
        answer = self._call("GET", f"work?ready={str(ready).lower()}&seconds={seconds:g}")
        return answer.content if answer.status_code == HTTPStatus.OK else None

    def check_wanted(self) -> None:
        self._call("GET", "wanted")

    def artifact(self, sha256: str) -> bytes:
        """Unchecked."""
        return self._call("GET", f"artifacts/{sha256}").content

    def answer(self, content: bytes) -> None:
        self._call("PUT", "answer", content)

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        until = time.monotonic() + self._patience_seconds
        while True:
            try:
                headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
                answer = self._http.request(method, self._url + path, content=content, headers=headers)
            except (httpx.TransportError, OSError) as error:
                why = repr(error)
            else:
                if answer.is_success:
                    return answer
                why = f"HTTP status {answer.status_code}: {answer.text[:300]}"
                if answer.status_code in _ENDS:
                    raise NotWanted(f"The control plane does not keep this pod: {why}")
            if time.monotonic() >= until:
                raise NotWanted(f"The control plane has not answered for {self._patience_seconds:g} s: {why}")
            time.sleep(_PAUSE_SECONDS)
