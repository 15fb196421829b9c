"""Access control: every route with every role, tokens, bind addresses, the audit log."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from sqlalchemy import delete, select

from epochal.addresses import is_loopback
from epochal.errors import EnvironmentProblem, OptionError
from epochal.service.api.access import access_of
from epochal.service.app import create_app
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.models import Token
from epochal.service.catalog.tokens import AdminTokenFile, ensure_admin_token
from epochal.service.domain.permissions import Access
from epochal.service.domain.secrets import UserToken
from epochal.service.domain.settings import Settings
from epochal.service.runtime import authenticator
from epochal.wire.tokens import Role
from tests.kit.catalogs import new_sqlite_catalog

if TYPE_CHECKING:
    from tests.service.conftest import Plane

CONSOLE = {"/", "/console", "/console/{path:path}"}
"""Static files without data of an installation."""
LOGIN = {"/v1/session/methods", "/v1/session/login", "/v1/session/callback"}
"""The login in a browser, which has no session yet."""
PUBLIC = {"/healthz", "/readyz", *CONSOLE, *LOGIN}
ANSWERS = {"/": 404, "/console": 307, "/v1/session/login": 404, "/v1/session/callback": 404}
"""Answers of public paths to a program, other than 200."""
OPEN_DOCUMENT = "/openapi.json"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(data=tmp_path_factory.mktemp("routes")))


def endpoints(app: FastAPI) -> Iterator[tuple[str, str, Access | None]]:
    """Method, path and required access of every route of the app."""
    for route in iter_route_contexts(app.routes):
        if route.path == OPEN_DOCUMENT:
            continue
        assert isinstance(route.original_route, APIRoute), f"{route.path} would bypass the access check"
        for method in sorted(route.methods or ()):
            yield method, str(route.path), access_of(route.endpoint)


def test_every_endpoint_declares_its_access(app: FastAPI) -> None:
    found = list(endpoints(app))

    assert len(found) > 40
    assert [(method, path) for method, path, access in found if access is None] == []
    assert {path for _, path, access in found if access is Access.PUBLIC} == PUBLIC
    internal = (Access.DRIVER, Access.POD)
    assert all((access in internal) == path.startswith("/internal/") for _, path, access in found)
    reading = {"/v1/applications/{name}/state/{table}/lookup"}
    for method, path, access in found:
        if access is not None and access.role is Role.VIEWER:
            assert method == "GET" or path in reading, f"{method} {path} needs a viewer only"


def filled(path: str) -> str:
    values = {"epoch": "1", "attempt": "1", "execution": "0" * 32, "name": "flights", "project": "default"}
    return re.sub(r"\{(\w+)(:path)?\}", lambda match: values.get(match[1], "x"), path)


def test_endpoints_enforce_their_access_for_each_role(plane: Plane, app: FastAPI) -> None:
    """Every endpoint allows or refuses each role, a missing token and an invalid token, as it declares."""
    clients: dict[Role | str | None, httpx.Client] = {
        None: plane.as_bearer(None),
        "wrong": plane.as_bearer(f"ept_{'0' * 32}_{'x' * 43}"),
        "nonsense": plane.as_bearer("nonsense"),
        **{role: plane.as_bearer(plane.token(role.value)) for role in Role},
    }
    for method, path, access in endpoints(app):
        assert access is not None
        for caller, client in clients.items():
            if path.endswith("/events") and caller in tuple(Role):
                continue  # an endless stream
            answer = client.request(method, filled(path))
            status, where = answer.status_code, f"{method} {path} as {caller}"
            if access is Access.PUBLIC:
                assert status == ANSWERS.get(path, 200), where
            elif access in (Access.DRIVER, Access.POD) or not isinstance(caller, Role):
                assert (status, answer.json()["type"]) == (401, "urn:epochal:problem:unauthenticated"), where
                assert answer.headers["www-authenticate"] == "Bearer", where
            elif access is not Access.MEMBER and not caller.includes(access.role or Role.ADMIN):
                assert (status, answer.json()["type"]) == (403, "urn:epochal:problem:forbidden"), where
            else:
                assert status not in (401, 403), where
    for client in clients.values():
        client.close()


def test_expired_or_deleted_token_is_refused(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime.now(UTC) + timedelta(minutes=5)
    short = plane.post("/v1/tokens", 201, name="short", role="viewer", expires_at=at.isoformat())["token"]
    client = plane.as_bearer(short)
    assert client.get("/v1/applications").status_code == 200
    monkeypatch.setattr(authenticator, "now", lambda: at - timedelta(microseconds=1))
    assert client.get("/v1/applications").status_code == 200
    monkeypatch.setattr(authenticator, "now", lambda: at)
    assert client.get("/v1/applications").json()["type"] == "urn:epochal:problem:unauthenticated"
    plane.control.authenticator.forget()
    assert client.get("/v1/applications").json()["type"] == "urn:epochal:problem:unauthenticated"

    made = plane.post("/v1/tokens", 201, name="deleted", role="viewer")
    client = plane.as_bearer(made["token"])
    assert client.get("/v1/applications").status_code == 200
    assert plane.client.delete(f"/v1/tokens/{made['id']}").status_code == 204
    assert client.get("/v1/applications").status_code == 401


def test_tokens_are_listed_without_their_secrets(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="reader", role="viewer")
    listed = plane.get("/v1/tokens")["items"]

    assert [item["name"] for item in listed] == ["admin", "reader"]
    assert made["token"] not in str(listed) and "token" not in listed[1]
    assert plane.client.post("/v1/tokens", json={"name": "reader", "role": "viewer"}).status_code == 409
    past = {"name": "past", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}
    assert plane.client.post("/v1/tokens", json=past).status_code == 422


def test_tokens_are_not_stored_in_clear_text(plane: Plane) -> None:
    secrets = [plane.settings.admin_token_file.read_text().strip(), plane.token("author")]
    plane.application()
    secrets.append(plane.driver().ticket.token)

    for file in plane.settings.data.rglob("*"):
        if file.is_file() and file != plane.settings.admin_token_file:
            content = file.read_bytes()
            assert not any(secret.encode() in content for secret in secrets), file


def test_admin_token_file_is_readable_by_its_owner_only(plane: Plane, tmp_path: Path) -> None:
    file = plane.settings.admin_token_file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(plane.settings.data.stat().st_mode) == 0o700


def test_catalog_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Also in a world-readable folder, and for a catalog of an earlier version and its write-ahead log."""
    path = tmp_path / "catalog.sqlite"
    for _ in range(2):
        database = Database(f"sqlite:///{path}")
        migrate_database(database)
        with database.writing() as session:
            session.execute(delete(Token))
            files = sorted(tmp_path.iterdir())
            parts = ["catalog.sqlite", *(f"catalog.sqlite-{part}" for part in ("shm", "turn", "wal"))]
            assert [file.name for file in files] == parts
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            for file in files:
                file.chmod(0o644)
    database.close()


def test_another_connection_keeps_the_locks_of_the_catalog(tmp_path: Path) -> None:
    """The last connection that closes removes SQLite's write-ahead log, and with it the changes of open connections."""
    path = tmp_path / "catalog.sqlite"
    first, second = Database(f"sqlite:///{path}"), Database(f"sqlite:///{path}")
    migrate_database(first)
    with first.reading() as session:
        session.execute(select(Token))
    with second.reading() as session:
        session.execute(select(Token))
    script = f"import sqlite3; other = sqlite3.connect({str(path)!r}); other.execute('SELECT * FROM tokens').close()"
    subprocess.run([sys.executable, "-c", f"{script}; other.close()"], check=True)
    assert path.with_name("catalog.sqlite-wal").exists()
    first.close()
    second.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(new_sqlite_catalog(tmp_path / "catalog.sqlite"))
    yield database
    database.close()


def test_admin_token_is_created_once_and_again_if_its_file_is_lost(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "data" / "admin.token"
    ensure_admin_token(database, file)
    first = file.read_text()
    ensure_admin_token(database, file)
    assert file.read_text() == first

    file.unlink()
    ensure_admin_token(database, file)
    assert file.read_text() != first


def test_admin_token_is_kept_with_a_new_catalog(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    ensure_admin_token(database, file)
    first = file.read_text()
    other = Database(new_sqlite_catalog(tmp_path / "other.sqlite"))
    ensure_admin_token(other, file)

    assert file.read_text() == first
    other.close()


def test_admin_token_readable_by_others_is_refused(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    ensure_admin_token(database, file)
    file.chmod(0o644)
    with pytest.raises(EnvironmentProblem, match="chmod 600"):
        ensure_admin_token(database, file)

    file.chmod(0o600)
    file.write_text("something else")
    with pytest.raises(EnvironmentProblem, match="does not contain a token"):
        ensure_admin_token(database, file)


def test_revoked_admin_token_stays_revoked_after_restarts(settings: Settings, serve: Callable[..., Any]) -> None:
    with serve(settings) as (_, token), bearer(settings, token) as client:
        second = client.post("/v1/tokens", json={"name": "second", "role": "admin"}).json()["token"]
        admin = next(item["id"] for item in client.get("/v1/tokens").json()["items"] if item["name"] == "admin")
        assert client.delete(f"/v1/tokens/{admin}").status_code == 204
    for _ in range(2):
        with serve(settings), bearer(settings, token) as client:
            assert client.get("/v1/applications").status_code == 401
            assert client.get("/v1/applications", headers={"Authorization": f"Bearer {second}"}).status_code == 200
            assert settings.admin_token_file.read_text().strip() == token


def test_rotating_the_admin_token_replaces_it_in_its_file(settings: Settings, serve: Callable[..., Any]) -> None:
    with serve(settings) as (_, token), bearer(settings, token) as client:
        (old,) = client.get("/v1/tokens").json()["items"]
        answer = client.post(f"/v1/tokens/{old['id']}/rotate", json={})
        assert answer.status_code == 201
        new = answer.json()
        assert (new["name"], new["roles"], new["file"]) == (
            "admin",
            {"default": "admin"},
            str(settings.admin_token_file),
        )
        assert settings.admin_token_file.read_text().strip() == new["token"] != token
        assert stat.S_IMODE(settings.admin_token_file.stat().st_mode) == 0o600
        assert client.get("/v1/applications").status_code == 401
    with serve(settings) as (_, token), bearer(settings, token) as client:
        assert token == new["token"]
        assert [item["id"] for item in client.get("/v1/tokens").json()["items"]] == [new["id"]]


def test_rotating_another_token_does_not_change_the_file(plane: Plane) -> None:
    before = plane.settings.admin_token_file.read_text()
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    made = plane.post("/v1/tokens", 201, name="ci", role="author", expires_at=expires)
    new = plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
    assert (new["name"], new["roles"], new["expires_at"]) == ("ci", {"default": "author"}, made["expires_at"])
    assert (new["file"], plane.settings.admin_token_file.read_text()) == (None, before)
    assert plane.as_bearer(made["token"]).get("/v1/applications").status_code == 401
    assert plane.as_bearer(new["token"]).get("/v1/applications").status_code == 200

    assert plane.client.post(f"/v1/tokens/{made['id']}/rotate", json={}).status_code == 404
    past = {"expires_at": "2020-01-01T00:00:00Z"}
    assert plane.client.post(f"/v1/tokens/{new['id']}/rotate", json=past).status_code == 422
    assert plane.as_bearer(new["token"]).get("/v1/applications").status_code == 200


def test_repeated_rotation_does_not_return_the_token(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="ci", role="viewer")
    path, key = f"/v1/tokens/{made['id']}/rotate", {"Idempotency-Key": "rotation"}
    first = plane.client.post(path, json={}, headers=key).json()
    repeated = plane.client.post(path, json={}, headers=key).json()
    assert (repeated["id"], repeated["token"]) == (first["id"], None)


@pytest.mark.parametrize("committed", [False, True])
def test_interrupted_rotation_is_completed_or_undone_at_start(
    database: Database, tmp_path: Path, committed: bool
) -> None:
    """The process terminated after it wrote the draft: before the commit in the catalog, or before it replaced the
    file."""
    path = tmp_path / "admin.token"
    ensure_admin_token(database, path)
    before, new = path.read_text().strip(), UserToken.make("1" * 32)
    AdminTokenFile(path).prepare(new)
    if committed:
        with database.writing() as session:
            row = session.scalars(select(Token)).one()
            session.delete(row)
            session.flush()
            session.add(Token(**{**token_columns(row), "id": new.id, "secret_sha256": new.sha256}))
    ensure_admin_token(database, path)
    assert path.read_text().strip() == (new.text if committed else before)
    assert sorted(tmp_path.glob("admin.token*")) == [path]
    with database.reading() as session:
        assert session.scalars(select(Token.id)).all() == [new.id if committed else before.split("_")[1]]


def token_columns(row: Token) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in Token.__table__.columns}


def bearer(settings: Settings, token: str) -> httpx.Client:
    return httpx.Client(base_url=settings.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "example.org", "localhost.example.org"])
def test_authentication_is_required_beyond_loopback(tmp_path: Path, host: str) -> None:
    with pytest.raises(OptionError, match="authentication"):
        create_app(Settings(data=tmp_path, host=host, authentication=False))
    assert create_app(Settings(data=tmp_path, host=host)) is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_hosts_are_recognised(host: str) -> None:
    assert is_loopback(host)


def test_only_local_host_names_are_served_without_authentication(settings: Settings, serve: Callable[..., Any]) -> None:
    with (
        serve(settings.model_copy(update={"authentication": False})),
        httpx.Client(base_url=settings.url, trust_env=False) as client,
    ):
        assert client.get("/v1/applications").status_code == 200
        rebound = client.get("/v1/applications", headers={"Host": "evil.example.org"})
        assert rebound.status_code == 403
        driver = client.post(f"/internal/v1/executions/{'0' * 32}/attempts/1/begin")
        assert driver.status_code == 401

        body = {"name": "flights", "artifact": "0" * 64}
        for foreign in (
            {"Origin": "https://evil.example.org"},
            {"Origin": "http://127.0.0.1.example.org:8765"},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            refused = client.post("/v1/applications", json=body, headers=foreign)
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:epochal:problem:forbidden"), foreign
            assert client.get("/v1/applications", headers=foreign).status_code == 403, foreign
        for own in ({"Origin": settings.url}, {"Origin": "http://localhost:3000"}, {"Sec-Fetch-Site": "none"}):
            assert client.get("/v1/applications", headers=own).status_code == 200, own


def test_driver_token_is_valid_for_its_own_attempt_only(plane: Plane) -> None:
    plane.application("flights")
    plane.application("trains")
    flights, trains = plane.driver("flights"), plane.driver("trains")
    client = plane.as_bearer(flights.ticket.token)

    own = f"/internal/v1/executions/{flights.execution}/attempts/{flights.attempt}/epochs/1"
    assert client.get(own).json()["detail"] == "There is no epoch 1."
    for other in (
        f"/internal/v1/executions/{trains.execution}/attempts/{trains.attempt}/begin",
        f"/internal/v1/executions/{flights.execution}/attempts/{flights.attempt + 1}/begin",
        f"/internal/v1/executions/{'0' * 32}/attempts/1/begin",
    ):
        answer = client.post(other)
        assert (answer.status_code, answer.json()["detail"]) == (404, "There is no such execution and attempt.")
    assert client.get("/v1/applications").status_code == 401
    assert plane.client.post(own.replace("epochs/1", "begin")).status_code == 401


def test_mutating_calls_are_in_the_audit_log(plane: Plane) -> None:
    reader = plane.as_bearer(plane.token("viewer", "reader"))
    plane.application(start=False)
    assert reader.delete("/v1/applications/flights").status_code == 403
    assert plane.as_bearer(None).post("/v1/applications/flights/start").status_code == 401
    assert plane.client.delete("/v1/applications/flights").status_code == 204
    plane.get("/v1/applications")

    log = [(item["token"], item["action"], item["target"], item["outcome"]) for item in plane.get("/v1/audit")["items"]]
    assert log == [
        ("admin", "DELETE /v1/applications/{name}", "/v1/applications/flights", 204),
        (None, "POST /v1/applications/{name}/start", "/v1/applications/flights/start", 401),
        ("reader", "DELETE /v1/applications/{name}", "/v1/applications/flights", 403),
        ("admin", "POST /v1/applications", "/v1/applications", 201),
        ("admin", "POST /v1/artifacts", "/v1/artifacts", 201),
        ("admin", "POST /v1/tokens", "/v1/tokens", 201),
    ]
