"""Sessions of browsers: cookies instead of tokens, with the same rights."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from epochal.service.api.access import is_login
from epochal.service.app import create_app
from epochal.service.catalog import sessions as rows
from epochal.service.domain.permissions import Access
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.wire.tokens import Role
from tests.service.browser import Browser, audited, stored
from tests.service.conftest import free_port
from tests.service.problems import check_problem
from tests.service.test_security import endpoints, filled

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def test_a_session_shows_its_caller_roles_and_expiry(plane: Plane, browser: Browser) -> None:
    made = browser.log_in(plane.token("operator", "ops"))
    found = browser.get()
    assert found.json() == made
    assert (made["name"], made["person"], made["roles"]) == ("ops", False, {"default": "operator"})
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert (lasts, made["idle_seconds"]) == (timedelta(hours=12), 7200)
    assert found.headers["cache-control"] == "no-store"


def test_a_request_with_a_token_shows_its_caller_without_a_session(plane: Plane) -> None:
    answer = plane.get("/v1/session")
    assert (answer["name"], answer["roles"]) == ("admin", {"default": "admin"})
    assert {answer[name] for name in ("id", "csrf_token", "created_at", "expires_at", "idle_seconds")} == {None}
    check_problem(plane.client.delete("/v1/session"), 404, "not-found")


def test_every_endpoint_accepts_a_session_with_exactly_the_rights_of_its_token(plane: Plane) -> None:
    """Each endpoint answers each role alike, by token and by session."""
    app = create_app(plane.settings)
    own = {"/v1/session", "/v1/sessions/{id}"}
    tried = 0
    for role in Role:
        token = plane.token(role.value)
        browser = Browser(plane.settings)
        browser.log_in(token)
        with plane.as_bearer(token) as bearer:
            for method, path, access in endpoints(app):
                if path in own or path.endswith("/events"):
                    continue
                by_token, by_session = bearer.request(method, filled(path)), browser.request(method, filled(path))
                where = f"{method} {path} as {role}"
                assert (by_session.status_code == 403) == (by_token.status_code == 403), where
                if access in (Access.DRIVER, Access.POD):
                    assert by_session.status_code == 401, where
                elif access is not Access.PUBLIC and not path.endswith("/rotate"):
                    assert by_session.status_code != 401, where
                tried += 1
        browser.client.close()
    assert tried > 300


def test_a_session_is_created_from_a_token_only(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    check_problem(browser.request("POST", "/v1/session"), 409, "conflict")
    with plane.as_bearer(None) as client:
        check_problem(client.post("/v1/session", json={"token": plane.admin_token}), 401, "unauthenticated")
    with plane.as_bearer("nonsense") as client:
        refused = client.post("/v1/session")
        check_problem(refused, 401, "unauthenticated")
        assert "set-cookie" not in refused.headers


def test_secrets_are_not_stored(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    browser.request("POST", "/v1/tokens", json={"name": "made", "role": "viewer"}, headers={"Idempotency-Key": "k"})
    plane.client.post("/v1/session", headers={"Idempotency-Key": "login"})
    secret = browser.cookie.rpartition("_")[2]
    for file in plane.settings.data.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


def test_owners_list_and_end_their_sessions(plane: Plane, browser: Browser) -> None:
    viewer = plane.token("viewer")
    browser.log_in(viewer)
    elsewhere, admin = Browser(plane.settings), Browser(plane.settings)
    elsewhere.log_in(viewer)
    of_admin = admin.log_in(plane.admin_token)["id"]
    listed = browser.get("/v1/sessions").json()["items"]
    assert [(item["name"], item["current"], item["address"]) for item in listed] == [
        ("a-viewer", False, "127.0.0.1"),
        ("a-viewer", True, "127.0.0.1"),
    ]
    check_problem(browser.request("DELETE", f"/v1/sessions/{of_admin}"), 404, "not-found")
    assert browser.request("DELETE", f"/v1/sessions/{listed[0]['id']}").status_code == 204
    check_problem(elsewhere.get(), 401, "unauthenticated")
    assert len(admin.get("/v1/sessions").json()["items"]) == 2
    assert admin.request("DELETE", f"/v1/sessions/{listed[1]['id']}").status_code == 204
    check_problem(browser.get(), 401, "unauthenticated")
    assert "eps_" not in str(listed)


def test_an_admin_of_a_project_does_not_see_sessions_of_others(plane: Plane, browser: Browser) -> None:
    plane.post("/v1/projects", 201, name="pricing")
    browser.log_in(plane.admin_token)
    of_project = Browser(plane.settings)
    of_project.log_in(plane.post("/v1/projects/pricing/tokens", 201, name="boss", role="admin")["token"])
    assert [item["name"] for item in of_project.get("/v1/sessions").json()["items"]] == ["pricing.boss"]
    other = browser.get().json()["id"]
    check_problem(of_project.request("DELETE", f"/v1/sessions/{other}"), 404, "not-found")


def test_the_number_of_sessions_of_a_caller_is_bounded(
    plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_OF_A_CALLER", 3)
    other = Browser(plane.settings)
    other.log_in(plane.token("viewer"))
    browser.log_in(plane.admin_token)
    latest = [Browser(plane.settings).log_in(plane.admin_token)["id"] for _ in range(3)]
    check_problem(browser.get(), 401, "unauthenticated")
    assert {row.id for row in stored(plane)} == {other.get().json()["id"], *latest}


def test_logins_and_logouts_are_audited_without_secrets(plane: Plane, browser: Browser) -> None:
    id = browser.log_in(plane.admin_token)["id"]
    browser.request("DELETE", "/v1/session")
    with plane.as_bearer("nonsense") as client:
        client.post("/v1/session")
    refused, created = audited(plane, "POST /v1/session")
    (ended,) = audited(plane, "DELETE /v1/session")
    assert (refused["outcome"], refused["token"]) == (401, None)
    assert (created["outcome"], created["token"], created["address"]) == (201, "admin", "127.0.0.1")
    assert [item["subject"] for item in created["changes"]] == [f"session {id}"] * 2
    assert (ended["changes"][0]["before"], ended["changes"][0]["after"]) == ("admin", None)
    assert "eps_" not in str(plane.get("/v1/audit"))


def test_changes_by_a_session_are_audited_as_those_of_its_token(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.token("admin", "boss"))
    browser.request("POST", "/v1/tokens", json={"name": "made", "role": "viewer"}, headers={"Idempotency-Key": "k"})
    with plane.as_bearer(None) as client:
        client.headers["Cookie"] = f"{browser.name}={browser.cookie}"
        again = client.post(
            "/v1/tokens",
            json={"name": "made", "role": "viewer"},
            headers={"Idempotency-Key": "k", "X-CSRF-Token": browser.csrf or ""},
        )
    assert again.headers["idempotency-replayed"] == "true"
    assert [item["token"] for item in audited(plane, "POST /v1/tokens")] == ["boss", "admin"]


def test_attempts_to_log_in_are_limited(settings: Settings, serve: Callable[..., Any]) -> None:
    limits = Limits(calls_per_second=1000, changes_per_second=0.0005, burst_seconds=10_000)
    with serve(settings.model_copy(update={"limits": limits})) as (_, token):
        browser = Browser(settings)
        wrong = [browser.client.post("/v1/session", headers={"Authorization": "Bearer x"}) for _ in range(6)]
        assert [answer.status_code for answer in wrong] == [401] * 5 + [429]
        assert int(wrong[-1].headers["retry-after"]) > 0
        right = {"Authorization": f"Bearer {token}"}
        check_problem(browser.client.post("/v1/session", headers=right), 429, "too-many-requests")
        assert browser.client.get("/v1/session", headers=right).status_code == 200
        entries = browser.client.get("/v1/audit", headers=right).json()["items"]
        assert [item["outcome"] for item in entries if item["action"] == "POST /v1/session"] == [401] * 5
    assert any(is_login(route.endpoint) for route in create_app(settings).routes if hasattr(route, "endpoint"))


def test_sessions_are_shared_by_control_planes_of_a_catalog(
    plane: Plane, browser: Browser, serve: Callable[..., Any]
) -> None:
    made = browser.log_in(plane.admin_token)
    second = plane.settings.model_copy(update={"port": free_port()})
    with serve(second):
        there = Browser(second, made["csrf_token"], browser.cookie)
        assert there.get().json() == made
        assert there.request("POST", "/v1/tokens", json={"name": "made", "role": "viewer"}).status_code == 201
        assert browser.request("DELETE", "/v1/session").status_code == 204
        until = time.monotonic() + 20
        while there.get().status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        check_problem(there.get(), 401, "unauthenticated")


def test_without_authentication_sessions_are_not_needed(settings: Settings, serve: Callable[..., Any]) -> None:
    with serve(settings.model_copy(update={"authentication": False})):
        browser = Browser(settings, cookie=f"eps_{'0' * 32}_{'x' * 43}")
        answer = browser.get().json()
        assert (answer["name"], answer["roles"], answer["id"]) == ("anonymous", {"default": "admin"}, None)
        check_problem(browser.request("POST", "/v1/session"), 409, "conflict")
        foreign = browser.get(headers={"Origin": "https://evil.example.org"})
        check_problem(foreign, 403, "forbidden")
