"""The fast path for calls of drivers returns the same answers as the ordinary routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.contracts.catalog import DriverStatus, EpochCounts, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service import internal_app
from epochal.service.api.fast_calls import FastCalls
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Attempt
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.domain.secrets import DriverToken
from epochal.service.domain.settings import Settings
from epochal.wire.internal_api import OpenEpoch, PrepareEpoch
from tests.kit.catalogs import new_sqlite_catalog

JSON = {"content-type": "application/json"}
PROTOCOL_HEADERS = {"epochal-protocol": "2", "epochal-version": "0.1.0"}


class Internal:
    """The internal app on a catalog with one driver."""

    def __init__(self, folder: Path) -> None:
        url = new_sqlite_catalog(folder / "catalog.sqlite")
        rows = standalone_catalog(url, "flights", "a" * 64)
        token = DriverToken.make(rows.execution, rows.attempt)
        database = Database(url)
        with database.writing() as session:
            session.get_one(Attempt, (rows.execution, rows.attempt)).token_sha256 = token.sha256
        database.close()
        self.token, self.execution = token.text, rows.execution
        self.branch = rows.begin_attempt().branch
        self.app = internal_app.create_internal_app(Settings(data=folder, database=url, internal_port=1))

    def call(self, method: str, path: str, content: Any = b"", **headers: str) -> httpx.Response:
        return asyncio.run(self._call(method, path, content, headers))

    async def _call(self, method: str, path: str, content: Any, headers: dict[str, str]) -> httpx.Response:
        begin = f"/internal/v1/executions/{self.execution}/attempts/"
        url = path if path.startswith("/") else f"{begin}{path if path[0].isdigit() else f'1/{path}'}"
        headers = {
            name: value for name, value in ({"authorization": f"Bearer {self.token}"} | headers).items() if value
        }
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://internal") as client:
            return await client.request(method, url, content=content, headers=headers)


def opened(epoch: int, parent: EpochKey | None = None) -> bytes:
    return OpenEpoch(epoch=epoch, parent=parent).model_dump_json().encode()


def prepared(internal: Internal, epoch: int, folder: str | None = None, **more: Any) -> bytes:
    path = f"{folder or internal.branch}/m.json"
    reference = ManifestReference(branch=internal.branch, epoch=epoch, path=path, sha256="c" * 64)
    counts = EpochCounts(rows_in=3, late_rows={"hourly": 2})
    body = PrepareEpoch(parent=None, manifest=reference, counts=counts).model_dump(mode="json")
    return json.dumps(body | more).encode()


RUNS = DriverStatus(phase="running", epoch=1).model_dump_json().encode()


def calls(internal: Internal) -> list[tuple[Any, ...]]:
    """Method, path, content and headers; some calls are repeated, and some are premature."""
    post = "POST"
    return [
        (post, "heartbeat", RUNS, JSON | PROTOCOL_HEADERS),
        (post, "heartbeat", RUNS, JSON),
        (post, "heartbeat", RUNS, JSON | PROTOCOL_HEADERS | {"epochal-protocol": "x"}),
        (post, "heartbeat", RUNS, JSON | PROTOCOL_HEADERS | {"epochal-version": "v" * 65}),
        (post, "heartbeat", b'{"phase": "dancing"}', JSON | PROTOCOL_HEADERS),
        (post, "epochs", opened(1), JSON),
        (post, "epochs", opened(1), JSON),
        (post, "epochs", opened(1, EpochKey("other", 3)), JSON),
        (post, "epochs", opened(0), JSON),
        (post, "epochs", opened(2), {"content-type": "text/plain"}),
        (post, "epochs", b"{", JSON),
        (post, "epochs", b"", {}),
        (post, "epochs", b'{"epoch": "two", "parent": null, "more": 1}', JSON),
        (post, "epochs?x=1", opened(1), JSON),
        (post, "epochs/", opened(1), JSON),
        ("GET", "epochs", b"", {}),
        (post, "epochs/1/commit", b"", {}),
        (post, "epochs/1/prepare", prepared(internal, 1, folder="other"), JSON),
        (post, "epochs/1/prepare", prepared(internal, 2), JSON),
        (post, "epochs/1/prepare", prepared(internal, 1, more=1), JSON),
        (post, "epochs/x/prepare", prepared(internal, 1), JSON),
        (post, "epochs/-1/commit", b"", {}),
        (post, f"epochs/{10**18}/commit", b"", {}),
        (post, f"epochs/{10**30}/commit", b"", {}),
        (post, "epochs/1/prepare", prepared(internal, 1), JSON),
        (post, "epochs/1/prepare", prepared(internal, 1), JSON),
        (post, "epochs/1/commit", b"", {}),
        (post, "epochs/1/commit", b"", {}),
        (post, "epochs/1/abort", b'{"failure": {"type": "t", "message": "m"}}', JSON),
        ("GET", "epochs/1", b"", {}),
        ("GET", "directives?after=&seconds=0", b"", {}),
        ("GET", "directives?after=0f&seconds=0.0", b"", {}),
        ("GET", "directives?after=&seconds=99", b"", {}),
        ("GET", f"directives?after={'f' * 33}&seconds=0", b"", {}),
        ("GET", "directives?seconds=0", b"", {}),
        (post, "epochs", opened(2), JSON | {"authorization": ""}),
        (post, "epochs", opened(2), JSON | {"authorization": "Basic x"}),
        (post, "epochs", opened(2), JSON | {"authorization": f"Bearer {internal.token[:-1]}_"}),
        (post, "2/epochs", opened(2), JSON),
        (post, "0/epochs", opened(2), JSON),
        (post, "01/epochs", opened(2), JSON),
        (post, "/internal/v1/executions/other/attempts/1/epochs", opened(2), JSON),
        (post, "epochs", b" " * (Settings().limits.body_bytes + 1), JSON),
        (post, "finish", b'{"failure": null}', JSON),
        (post, "heartbeat", RUNS, JSON | PROTOCOL_HEADERS),
        (post, "epochs", opened(2, EpochKey(internal.branch, 1)), JSON),
    ]


def bypassed(app: ASGIApp, drivers: Any) -> ASGIApp:
    return app


def answers_of(internal: Internal) -> list[tuple[Any, ...]]:
    found = []
    for method, path, content, headers in calls(internal):
        answer = internal.call(method, path, content, **headers)
        body = answer.text.replace(internal.branch, "BRANCH").replace(internal.execution, "EXECUTION")
        document = json.loads(body) if body else None
        if isinstance(document, dict):
            document = {name: value for name, value in document.items() if name not in ("request", *TIMES)}
        compared = {
            name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")
        }
        found.append((method, path.replace(internal.execution, ""), answer.status_code, document, compared))
    return found


TIMES = ("started_at", "prepared_at", "committed_at")


def test_fast_path_and_ordinary_routes_return_equal_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = answers_of(Internal(tmp_path / "fast"))
    monkeypatch.setattr(internal_app, "FastCalls", bypassed)
    ordinary = answers_of(Internal(tmp_path / "ordinary"))
    for one, other in zip(fast, ordinary, strict=True):
        assert one == other
    assert {status for _, _, status, _, _ in fast} >= {200, 204, 401, 404, 405, 409, 413, 422}


def test_frequent_calls_bypass_the_ordinary_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError(scope["path"])

    monkeypatch.setattr(internal_app, "FastCalls", lambda app, drivers: FastCalls(refuse, drivers))
    internal = Internal(tmp_path)
    statuses = [
        internal.call("POST", "heartbeat", RUNS, **JSON, **PROTOCOL_HEADERS).status_code,
        internal.call("POST", "epochs", opened(1), **JSON).status_code,
        internal.call("POST", "epochs/1/prepare", prepared(internal, 1), **JSON).status_code,
        internal.call("POST", "epochs/1/commit").status_code,
        internal.call("GET", "directives?after=&seconds=0.0").status_code,
    ]
    assert statuses == [200, 204, 204, 204, 200]
