"""The gate authorises a request by its head, before reading a body and before replaying an answer."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import update

from epochal.service.api import bodies
from epochal.service.api.access import access_of, changes_something
from epochal.service.api.bodies import BodyMemory, NoMemoryForBody
from epochal.service.app import create_app
from epochal.service.catalog.models import Token
from epochal.service.domain.permissions import Access
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.internal_app import create_internal_app
from epochal.service.query_app import compose_worker, create_query_app
from epochal.service.query_composition import QueryOrders
from epochal.wire.tokens import Role
from tests.kit.catalogs import new_sqlite_catalog
from tests.service.problems import check_problem
from tests.service.test_security import filled

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def control_app(settings: Settings) -> FastAPI:
    return create_app(settings)


def query_app(settings: Settings) -> FastAPI:
    node, _ = compose_worker(QueryOrders(settings=settings, folder=settings.data))
    return create_query_app(node)


def answer_to_head(app: FastAPI, method: str, path: str, **headers: str) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of the answer to a head; fails if the app reads the body first."""
    sent: list[Any] = []

    async def receive() -> Any:
        assert sent, f"{method} {path}: the body was read before the answer"
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize("make", [control_app, create_internal_app, query_app])
def test_no_endpoint_reads_a_body_without_a_token(tmp_path: Path, make: Callable[..., FastAPI]) -> None:
    url = new_sqlite_catalog(tmp_path / "catalog.sqlite")
    app = make(Settings(data=tmp_path, database=url, internal_port=None if make is control_app else 1))
    tried = 0
    for route in app.routes:
        if not isinstance(route, APIRoute) or access_of(route.endpoint) is Access.PUBLIC:
            continue
        for method in route.methods or ():
            path = filled(route.path)
            for framing in ({"content-length": str(1 << 30)}, {"transfer-encoding": "chunked"}):
                status, headers = answer_to_head(app, method, path, **framing, **{"idempotency-key": "k"})
                assert status == 401, f"{method} {path}"
                assert headers[b"connection"] == b"close" and headers[b"www-authenticate"] == b"Bearer"
                tried += 1
    assert tried > 20


def test_no_endpoint_reads_a_body_without_its_role(plane: Plane) -> None:
    roles = {role: plane.token(role.value) for role in (Role.VIEWER, Role.OPERATOR, Role.AUTHOR)}
    app = create_app(plane.settings)
    tried = 0
    for route in app.routes:
        access = access_of(route.endpoint) if isinstance(route, APIRoute) else None
        if not isinstance(route, APIRoute) or access is None or access.role is None:
            continue
        for role, token in roles.items():
            for method in () if role.includes(access.role) else route.methods or ():
                headers = {"authorization": f"Bearer {token}", "content-length": "9999999", "idempotency-key": "k"}
                status, _ = answer_to_head(app, method, filled(route.path), **headers)
                assert status == 403, f"{role}: {method} {route.path}"
                tried += 1
    assert tried > 50


def test_a_body_is_not_parsed_without_a_token(plane: Plane) -> None:
    with plane.as_bearer(None) as client:
        check_problem(client.post("/v1/applications", content=b"{bad"), 401, "unauthenticated")
        execution = f"/internal/v1/executions/{'0' * 32}/attempts/1"
        check_problem(client.post(f"{execution}/epochs", content=b"{bad"), 401, "unauthenticated")
    check_problem(plane.client.post("/v1/applications", content=b"{bad"), 422, "invalid-request")


def head(plane: Plane, path: str, length: int, token: str | None, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}", "Content-Type: application/json"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    return ("\r\n".join([*lines, *more]) + "\r\n\r\n").encode()


def connected(plane: Plane) -> socket.socket:
    return socket.create_connection(("127.0.0.1", plane.settings.port), timeout=20)


@pytest.mark.parametrize("expect", [[], ["Expect: 100-continue"]])
def test_a_large_body_without_a_token_is_refused_before_it_is_sent(plane: Plane, expect: list[str]) -> None:
    with connected(plane) as connection:
        connection.sendall(head(plane, "/v1/artifacts?filename=a.py", 50 << 20, None, *expect))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # reads until the connection is closed
    assert answer.startswith(b"HTTP/1.1 401 ") and b"connection: close" in answer


def test_a_client_reads_the_answer_to_a_body_refused_by_its_head(plane: Plane) -> None:
    with plane.as_bearer(None) as client:
        answer = client.post("/v1/artifacts", params={"filename": "a.py"}, content=b"#" * (30 << 20))
    check_problem(answer, 401, "unauthenticated")


SMALL = Limits(
    body_bytes=400_000, artifact_bytes=400_000, bundle_part_bytes=400_000, bodies_bytes=1_000_000, head_seconds=60
)


def test_unfinished_bodies_are_bounded_and_small_ones_are_accepted(
    settings: Settings, serve: Callable[..., Any]
) -> None:
    with serve(settings.model_copy(update={"limits": SMALL})) as (_, token):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=settings.url, headers=headers, trust_env=False) as client:
            held = []
            try:
                for _ in range(3):  # 900,000 of 1,000,000 bytes
                    connection = socket.create_connection(("127.0.0.1", settings.port), timeout=20)
                    held.append(connection)
                    head = f"POST /v1/applications HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                    connection.sendall(f"{head}Content-Length: 400000\r\n\r\n".encode() + b" " * 300_000)
                await_held_bodies(settings, token, 110_000)
                answer = large(client)
                check_problem(answer, 503, "too-many-bodies")
                assert answer.headers["retry-after"] == "1"
                assert answer.headers["connection"] == "close"  # refused by its head
                chunked = client.post("/v1/applications", content=iter([b" " * 150_000] * 2))
                check_problem(chunked, 503, "too-many-bodies")
                assert client.post("/v1/tokens", json={"name": "ci", "role": "viewer"}).status_code == 201
            finally:
                for connection in held:
                    connection.close()
            until = time.monotonic() + 10
            while (answer := large(client)).status_code == 503 and time.monotonic() < until:
                time.sleep(0.05)
            check_problem(answer, 422, "invalid-request")


def large(client: httpx.Client) -> httpx.Response:
    """A request with a body that fits only while the held bodies have not arrived."""
    return client.post("/v1/applications", content=b"[" + b" " * 109_998 + b"]")


def await_held_bodies(settings: Settings, token: str, size: int) -> None:
    """Wait until a body of ``size`` bytes no longer fits: by heads alone, which take no memory from the held bodies."""
    until = time.monotonic() + 10
    refused = False
    while not refused and time.monotonic() < until:
        with socket.create_connection(("127.0.0.1", settings.port), timeout=0.2) as connection:
            head = f"POST /v1/applications HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
            with suppress(TimeoutError):
                refused = connection.recv(1 << 10).startswith(b"HTTP/1.1 503 ")
    assert refused


def test_bodies_release_their_memory() -> None:
    memory = BodyMemory(SMALL.model_copy(update={"small_body_bytes": 100, "small_bodies_bytes": 250}))
    memory.grow(0, 100)
    memory.grow(0, 100)
    with pytest.raises(NoMemoryForBody):
        memory.grow(0, 51)
    memory.grow(100, 1_000_000)  # the small body grows into a large one
    assert (memory.small, memory.large) == (100, 1_000_000)
    with pytest.raises(NoMemoryForBody):
        memory.check(101)
    memory.grow(0, 100)
    memory.give_back(1_000_000)
    memory.give_back(100)
    memory.give_back(100)
    assert (memory.small, memory.large) == (0, 0)


def test_limits_below_the_largest_body_are_refused() -> None:
    with pytest.raises(ValueError, match="bodies_bytes"):
        Limits(bodies_bytes=1 << 20)


def test_large_bodies_are_parsed_in_a_thread(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    class RecordingRequest(bodies._LargeRequest):
        async def json(self) -> Any:
            threads.append(threading.current_thread().name)
            return await super().json()

    monkeypatch.setattr(bodies, "_LargeRequest", RecordingRequest)
    artifact = plane.artifact()
    body = {"name": "flights", "artifact": artifact, "parameters": {"out": "/data/x"}, "start": False}
    content = json.dumps(body).encode() + b" " * bodies.LARGE_BODY_BYTES
    headers = {"content-type": "application/json"}
    for sent in (content, iter([content[:100], content[100:]])):
        answer = plane.client.post("/v1/applications", content=sent, headers=headers)
        assert answer.status_code in (201, 202), answer.text
        assert plane.client.delete("/v1/applications/flights").is_success
    assert len(threads) == 2 and "servers" not in threads
    check_problem(
        plane.client.post("/v1/applications", content=b"{bad" + content, headers=headers), 422, "invalid-request"
    )
    audited = [item for item in plane.get("/v1/audit")["items"] if item["action"] == "POST /v1/applications"]
    assert [item["outcome"] for item in audited] == [422, answer.status_code, answer.status_code]


def test_a_caller_that_lost_its_role_receives_no_replay(plane: Plane) -> None:
    operator = plane.post("/v1/tokens", 201, name="ci", role="author")
    headers = {"Idempotency-Key": "once"}
    with plane.as_bearer(operator["token"]) as client:
        upload: dict[str, Any] = {"params": {"filename": "a.py"}, "content": b"# {}", "headers": headers}
        assert client.post("/v1/artifacts", **upload).status_code == 201
        assert client.post("/v1/artifacts", **upload).headers["idempotency-replayed"] == "true"
        with plane.control.database.writing() as session:
            session.execute(update(Token).where(Token.id == operator["id"]).values(roles={"default": "viewer"}))
        plane.control.authenticator.forget()
        refused = client.post("/v1/artifacts", **upload)
        check_problem(refused, 403, "forbidden")
        plane.client.delete(f"/v1/tokens/{operator['id']}")
        check_problem(client.post("/v1/artifacts", **upload), 401, "unauthenticated")
        assert "idempotency-replayed" not in refused.headers


def test_cross_origin_requests_receive_no_replay_without_authentication(
    settings: Settings, serve: Callable[..., Any]
) -> None:
    with (
        serve(settings.model_copy(update={"authentication": False})),
        httpx.Client(base_url=settings.url, trust_env=False) as client,
    ):
        upload: dict[str, Any] = {"params": {"filename": "a.py"}, "content": b"# {}"}
        assert client.post("/v1/artifacts", **upload, headers={"Idempotency-Key": "once"}).status_code == 201
        for foreign in ({"Host": "evil.example.org"}, {"Origin": "https://evil.example.org"}):
            refused = client.post("/v1/artifacts", **upload, headers={"Idempotency-Key": "once", **foreign})
            check_problem(refused, 403, "forbidden")
        replayed = client.post("/v1/artifacts", **upload, headers={"Idempotency-Key": "once"})
        assert replayed.headers["idempotency-replayed"] == "true"


def test_a_refused_call_has_one_audit_entry(plane: Plane) -> None:
    with plane.as_bearer(plane.token("viewer")) as client:
        assert client.post("/v1/applications", json={}, headers={"Idempotency-Key": "k"}).status_code == 403
    entries = [item for item in plane.get("/v1/audit")["items"] if item["action"] == "POST /v1/applications"]
    assert [(item["outcome"], item["token"]) for item in entries] == [(403, "a-viewer")]


def test_the_gate_precedes_idempotency() -> None:
    """The middleware that was added last is the outermost."""
    app = create_app(Settings())
    names = [getattr(layer.cls, "__name__", "") for layer in app.user_middleware]
    assert names == ["ProjectPaths", "Transport", "Gate", "Bodies", "Idempotency", "Audit"]
    assert any(changes_something(route.endpoint) for route in app.routes if isinstance(route, APIRoute))
