"""A client that retries at other control planes, and the load that uses it."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

PATIENCE_SECONDS = 90.0
_RETRIED_STATUSES = (429, 500, 502, 503, 504, 507)
_UNDER_WAY = "urn:epochal:problem:call-in-progress"
_UNKNOWN = "urn:epochal:problem:call-outcome-unknown"


class AnswerLost(Exception):
    """The control plane was killed after the call took effect, before it stored the answer."""


class RetryingClient:
    """Retries calls with their Idempotency-Key at control planes in turn. Safe to use from threads."""

    def __init__(self, urls: Sequence[str], token: str, seed: int) -> None:
        self._chance = random.Random(seed)
        headers = {"Authorization": f"Bearer {token}"}
        self._clients = [
            httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=httpx.Timeout(8.0, connect=2.0))
            for url in urls
        ]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def call(
        self, method: str, path: str, retry_if: Callable[[httpx.Response], bool] = lambda _: False, **more: Any
    ) -> Any:
        """Retry until an answer is neither an error of the control plane or the connection, nor meets ``retry_if``.

        Raises :class:`AnswerLost`.
        """
        headers = {} if method == "GET" else {"Idempotency-Key": uuid.uuid4().hex}
        deadline = time.monotonic() + PATIENCE_SECONDS
        clients = self._chance.sample(self._clients, len(self._clients))
        last = ""
        while True:
            for client in clients:
                try:
                    answer = client.request(method, path, headers=headers, **more)
                except httpx.TransportError as error:
                    last = f"{type(error).__name__}: {error}"
                    continue
                if _is_conflict(answer, _UNKNOWN):
                    raise AnswerLost
                if answer.status_code in _RETRIED_STATUSES or _is_conflict(answer, _UNDER_WAY) or retry_if(answer):
                    last = f"{answer.status_code}: {answer.text[:300]}"
                    continue
                return answer
            assert time.monotonic() < deadline, f"{method} {path} is not answered: {last}"
            time.sleep(0.2)

    def get(self, path: str, **query: Any) -> Any:
        answer = self.call("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.call("POST", path, json=body)
        assert answer.is_success, f"{path}: {answer.text}"
        return answer.json()


def _is_conflict(answer: httpx.Response, type: str) -> bool:
    return answer.status_code == 409 and answer.json()["type"] == type


class BackgroundLoad(Protocol):
    """Load during a history. ``problems``: violated guarantees. ``operations`` and ``savepoints`` (by application):
    confirmed by an answer."""

    problems: dict[str, None]
    lookups: int
    operations: list[str]
    savepoints: dict[str, list[str]]

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass
class RestLoad:
    """Runs look-ups with ``min_epoch`` and operations until it is stopped."""

    client: RetryingClient
    applications: Sequence[str]
    seed: int
    problems: dict[str, None] = field(default_factory=dict)
    lookups: int = 0
    operations: list[str] = field(default_factory=list)
    savepoints: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(work,), daemon=True)
            for work in (self._look_up, self._operate)
        ]
        self._seen = dict.fromkeys(self.applications, 0)
        self._chance = random.Random(self.seed)
        self._number = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS + 30)
            if thread.is_alive():
                self.problems["a call of the load does not end"] = None

    def _until_stopped(self, work: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            try:
                work()
            except AnswerLost:
                self._stopped.wait(0.3)
            except AssertionError as error:
                self.problems[str(error)] = None

    def _look_up(self) -> None:
        """Read with ``min_epoch``; no control plane may return an older epoch than an earlier answer."""
        name = random.choice(self.applications)
        seen = self._seen[name]
        path = f"/v1/applications/{name}/state/totals/keys/all"
        query = {"min_epoch": seen, "wait_seconds": 2} if seen else {}
        answer = self.client.call("GET", path, retry_if=_is_behind, params=query)
        if answer.status_code != 200:
            self.problems[f"a look-up of {name}: {answer.status_code} {answer.json()['detail']}"] = None
            return
        document = answer.json()
        self.lookups += 1
        if document["epoch"] < seen:
            self.problems[f"{name} was at epoch {seen}, and is at {document['epoch']}"] = None
        if document["value"]["total"] != document["epoch"]:
            self.problems[f"{name} has {document['value']} at epoch {document['epoch']}"] = None
        self._seen[name] = max(seen, document["epoch"])
        self._stopped.wait(0.05)

    def _operate(self) -> None:
        self._number += 1
        name = self._chance.choice(self.applications)
        match self._chance.choice(["savepoint", "savepoint", "export", "verify"]):
            case "savepoint":
                savepoint = f"s{self._number}"
                answer = self.client.call("POST", f"/v1/applications/{name}/savepoints", json={"name": savepoint})
                assert answer.is_success, answer.text
                self.savepoints.setdefault(name, []).append(savepoint)
                made = answer.json()
            case "export":
                made = self.client.post(f"/v1/applications/{name}/export")
            case _:
                answer = self.client.call("POST", "/v1/verifications", json={"quick": True})
                if answer.status_code == 409:  # one verification at a time
                    self._stopped.wait(0.3)
                    return
                assert answer.is_success, answer.text
                made = answer.json()
        self.operations.append(made["id"])
        self._stopped.wait(self._chance.uniform(0.2, 1.0))


def _is_behind(answer: httpx.Response) -> bool:
    """The replica of this control plane is behind or missing; another one may answer."""
    return answer.status_code in (404, 409, 425) and any(
        slug in answer.text for slug in ("not-yet-committed", "not-found", "table-not-found", "replica")
    )
