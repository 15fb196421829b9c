"""Links with which a browser signs in once, without a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import select, update

from epochal.service.catalog import sessions as rows
from epochal.service.catalog.models import SessionLink
from epochal.service.catalog.sessions import SessionLinkRepository, SessionRepository
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime import browser_sessions
from epochal.service.runtime.expiry import CatalogExpiry
from tests.kit.catalogs import database as database
from tests.kit.catalogs import url as url
from tests.kit.identity_provider import IdentityProvider, identity_provider
from tests.service.browser import Browser, audited, stored
from tests.service.conftest import free_port
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def exchange(browser: Browser, code: str) -> httpx.Response:
    return browser.client.post("/v1/session", headers={"Authorization": f"Bearer {code}"})


def links(plane: Plane) -> list[SessionLink]:
    with plane.control.database.reading() as session:
        return list(session.scalars(select(SessionLink).order_by(SessionLink.id)))


def change_links(plane: Plane, **values: Any) -> None:
    with plane.control.database.writing() as session:
        session.execute(update(SessionLink).values(**values))


@pytest.mark.parametrize("role", ["viewer", "operator", "author", "admin"])
def test_a_link_creates_one_session_with_the_rights_of_its_token(plane: Plane, browser: Browser, role: str) -> None:
    with plane.as_bearer(plane.token(role, "ops")) as client:
        answer = client.post("/v1/session/links", json={})
        link = answer.json()
        by_token = client.get("/v1/session").json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert link["url"] == f"{plane.settings.url}/console/#code={link['code']}"
    assert len(link["url"]) < 80
    lasts = datetime.fromisoformat(link["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=50) < lasts <= timedelta(seconds=60)
    made = exchange(browser, link["code"])
    assert made.status_code == 201
    shown = browser.get().json()
    assert (shown["name"], shown["roles"], shown["person"]) == (by_token["name"], by_token["roles"], False)
    assert [row.token for row in stored(plane)] == [by_token_id(plane)]
    refused = exchange(Browser(plane.settings), link["code"])
    assert "was used, or has expired" in check_problem(refused, 401, "unauthenticated")["detail"]
    assert "set-cookie" not in refused.headers
    assert links(plane) == []


def by_token_id(plane: Plane) -> str:
    return next(str(token["id"]) for token in plane.get("/v1/tokens")["items"] if token["name"] == "ops")


@pytest.mark.parametrize("path", ["/console/applications/flights?epoch=3", "/console/applications/f/state#key=JFK"])
def test_a_link_opens_a_page_of_the_console(plane: Plane, path: str) -> None:
    link = plane.client.post("/v1/session/links", json={"path": path}).json()
    assert link["url"] == f"{plane.settings.url}{path}{'&' if '#' in path else '#'}code={link['code']}"


@pytest.mark.parametrize(
    "body",
    [
        {"path": "//evil.example.org/console/"},
        {"path": "/console/\\evil"},
        {"path": "/v1/tokens"},
        {"path": "/console/\n"},
        {"seconds": 0},
        {"seconds": 3601},
        {"seconds": "nan"},
        {"role": "admin"},
    ],
)
def test_invalid_links_are_refused(plane: Plane, body: dict[str, Any]) -> None:
    assert plane.client.post("/v1/session/links", json=body).status_code == 422
    assert links(plane) == []


def test_a_link_has_the_public_address(settings: Settings, serve: Callable[..., Any]) -> None:
    with serve(settings.model_copy(update={"advertised_url": "https://epochal.example/"})) as (_, token):
        headers = {"Authorization": f"Bearer {token}"}
        link = httpx.post(f"{settings.url}/v1/session/links", json={}, headers=headers, trust_env=False).json()
    assert link["url"] == f"https://epochal.example/console/#code={link['code']}"


def test_a_code_is_accepted_by_logins_only(plane: Plane) -> None:
    code = plane.post("/v1/session/links", 201)["code"]
    with plane.as_bearer(code) as client:
        for method, path in (("GET", "/v1/session"), ("GET", "/v1/applications"), ("POST", "/v1/session/links")):
            check_problem(client.request(method, path, json={}), 401, "unauthenticated")
    assert len(links(plane)) == 1


def test_only_the_hash_of_a_code_is_stored(plane: Plane) -> None:
    code = plane.post("/v1/session/links", 201)["code"]
    assert len(links(plane)) == 1
    for file in plane.settings.data.rglob("*"):
        if file.is_file():
            assert code.encode() not in file.read_bytes(), file


def test_a_link_expires_and_is_deleted(plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    code = plane.post("/v1/session/links", 201, seconds=3600)["code"]
    at = links(plane)[0].expires_at
    expiry = CatalogExpiry(plane.control.database, plane.settings.kept)
    assert not expiry.expire_session_links()
    monkeypatch.setattr(browser_sessions, "now", lambda: at)
    check_problem(exchange(browser, code), 401, "unauthenticated")
    assert len(links(plane)) == 1
    change_links(plane, expires_at=datetime.now(UTC))
    assert expiry.expire_session_links() and not expiry.expire_session_links()
    assert links(plane) == []


def test_a_link_is_valid_until_its_end(plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    code = plane.post("/v1/session/links", 201)["code"]
    at = links(plane)[0].expires_at
    monkeypatch.setattr(browser_sessions, "now", lambda: at - timedelta(microseconds=1))
    assert exchange(browser, code).status_code == 201


@pytest.mark.parametrize("how", ["delete", "rotate"])
def test_a_revoked_token_ends_its_links(plane: Plane, browser: Browser, how: str) -> None:
    made = plane.post("/v1/tokens", 201, name="ci", role="author")
    with plane.as_bearer(made["token"]) as client:
        code = client.post("/v1/session/links", json={}).json()["code"]
    if how == "delete":
        plane.client.delete(f"/v1/tokens/{made['id']}")
    else:
        plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
    check_problem(exchange(browser, code), 401, "unauthenticated")
    assert links(plane) == []


def test_a_session_by_a_link_ends_with_the_token(plane: Plane, browser: Browser) -> None:
    at = datetime.now(UTC) + timedelta(seconds=40)
    token = plane.post("/v1/tokens", 201, name="short", role="viewer", expires_at=at.isoformat())["token"]
    with plane.as_bearer(token) as client:
        link = client.post("/v1/session/links", json={"seconds": 3600}).json()
    assert datetime.fromisoformat(link["expires_at"]) == at
    assert datetime.fromisoformat(exchange(browser, link["code"]).json()["expires_at"]) == at


class TestLinksOfSessions:
    def test_have_the_rights_and_the_end_of_the_session(self, plane: Plane, browser: Browser) -> None:
        made = browser.log_in(plane.token("operator"))
        link = browser.request("POST", "/v1/session/links", json={"seconds": 3600}).json()
        time.sleep(0.01)  # a session that began now would end later
        other = Browser(plane.settings)
        second = exchange(other, link["code"]).json()
        assert (second["name"], second["roles"]) == (made["name"], made["roles"])
        assert second["expires_at"] == made["expires_at"]
        check_problem(other.get("/v1/tokens"), 403, "forbidden")

    def test_require_the_csrf_token(self, plane: Plane, browser: Browser) -> None:
        browser.log_in(plane.admin_token)
        browser.csrf = None
        check_problem(browser.request("POST", "/v1/session/links", json={}), 403, "forbidden")

    def test_end_with_the_session(self, plane: Plane, browser: Browser) -> None:
        browser.log_in(plane.admin_token)
        code = browser.request("POST", "/v1/session/links", json={}).json()["code"]
        assert browser.request("DELETE", "/v1/session").status_code == 204
        check_problem(exchange(Browser(plane.settings), code), 401, "unauthenticated")

    def test_are_refused_for_an_ended_session(self, plane: Plane, browser: Browser) -> None:
        browser.log_in(plane.admin_token)
        assert browser.get().status_code == 200  # cached now
        with plane.control.database.writing() as session:
            SessionRepository(session).end(stored(plane)[0].id, None)
        check_problem(browser.request("POST", "/v1/session/links", json={}), 401, "unauthenticated")
        assert links(plane) == []


def test_one_of_concurrent_exchanges_at_two_control_planes_succeeds(plane: Plane, serve: Callable[..., Any]) -> None:
    second = plane.settings.model_copy(update={"port": free_port()})
    with serve(second):
        for _ in range(5):
            code = plane.post("/v1/session/links", 201)["code"]
            before, start = len(stored(plane)), threading.Barrier(8)

            def exchanged(number: int, code: str = code, start: threading.Barrier = start) -> int:
                browser = Browser((plane.settings, second)[number % 2])
                with browser.client:
                    start.wait()
                    return exchange(browser, code).status_code

            with ThreadPoolExecutor(8) as pool:
                found = sorted(pool.map(exchanged, range(8)))
            assert found == [201] + [401] * 7
            assert len(stored(plane)) == before + 1


def test_a_link_that_was_verified_twice_is_used_once(plane: Plane) -> None:
    """Both requests find the link before one of them uses it."""
    code = plane.post("/v1/session/links", 201)["code"]
    found = [plane.control.authenticator.sessions._by_link(rows.SessionCode(code)) for _ in range(2)]
    plane.control.sessions.create(found[0], None, None)
    with pytest.raises(rows.Unauthenticated, match="was used"):
        plane.control.sessions.create(found[1], None, None)
    assert len(stored(plane)) == 1


def test_concurrent_transactions_use_a_link_once(database: Any) -> None:
    """On SQLite and on PostgreSQL."""
    moment = datetime.now(UTC)
    claims = {"sub": "x"}
    end = moment + timedelta(hours=1)
    values = {"code_sha256": "0" * 64, "caller": "c", "claims": claims, "created_at": moment, "expires_at": end}
    with database.writing() as session:
        session.add(SessionLink(id="a" * 32, **values))
    start = threading.Barrier(4)

    def use(_number: int) -> bool:
        start.wait()
        try:
            with database.writing() as session:
                SessionLinkRepository(session).use("a" * 32)
                time.sleep(0.05)  # the other transactions begin meanwhile
            return True
        except rows.Unauthenticated:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(use, range(4))) == [False, False, False, True]


def test_creation_and_use_are_audited_without_codes(plane: Plane, browser: Browser) -> None:
    with plane.as_bearer(plane.token("viewer", "ada")) as client:
        code = client.post("/v1/session/links", json={}).json()["code"]
    id = links(plane)[0].id
    session = exchange(browser, code).json()["id"]
    exchange(Browser(plane.settings), code)
    (created,) = audited(plane, "POST /v1/session/links")
    refused, used = audited(plane, "POST /v1/session")
    assert (created["outcome"], created["token"], created["address"]) == (201, "ada", "127.0.0.1")
    assert {item["subject"] for item in created["changes"]} == {f"session link {id}"}
    assert (used["outcome"], used["token"]) == (201, "ada")
    assert {item["subject"] for item in used["changes"]} == {f"session link {id}", f"session {session}"}
    assert (refused["outcome"], refused["token"]) == (401, None)
    assert "epc_" not in str(plane.get("/v1/audit"))


def test_attempts_with_codes_are_limited(settings: Settings, serve: Callable[..., Any]) -> None:
    limits = Limits(calls_per_second=1000, changes_per_second=0.0005, burst_seconds=10_000)
    with serve(settings.model_copy(update={"limits": limits})) as (_, token):
        browser = Browser(settings)
        headers = {"Authorization": f"Bearer {token}"}
        code = browser.client.post("/v1/session/links", json={}, headers=headers).json()["code"]
        wrong = [exchange(browser, f"epc_{'x' * 32}").status_code for _ in range(6)]
        assert wrong == [401] * 5 + [429]
        check_problem(exchange(browser, code), 429, "too-many-requests")


def test_the_number_of_links_of_a_caller_is_bounded(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_OF_A_CALLER", 2)
    with plane.as_bearer(plane.token("viewer")) as client:
        other = client.post("/v1/session/links", json={}).json()["code"]
    made = [plane.post("/v1/session/links", 201)["code"] for _ in range(3)]
    answers = [exchange(Browser(plane.settings), code).status_code for code in (other, *made)]
    assert answers == [201, 401, 201, 201]


def test_without_authentication_links_are_not_needed(settings: Settings, serve: Callable[..., Any]) -> None:
    with serve(settings.model_copy(update={"authentication": False})):
        refused = Browser(settings).client.post("/v1/session/links", json={})
        assert f"open {settings.url}/console/" in check_problem(refused, 409, "conflict")["detail"]


class TestPeople:
    @pytest.fixture
    def provider(self) -> Iterator[IdentityProvider]:
        with identity_provider() as provider:
            yield provider

    @pytest.fixture
    def settings(self, settings: Settings, provider: IdentityProvider) -> Settings:
        return settings.model_copy(update={"oidc": provider.settings()})

    def test_a_link_creates_a_session_of_the_person(
        self, plane: Plane, browser: Browser, provider: IdentityProvider
    ) -> None:
        expires = int(time.time()) + 300
        with plane.as_bearer(provider.token(groups=["readers", "builders"], exp=expires)) as client:
            code = client.post("/v1/session/links", json={}).json()["code"]
            by_token = client.get("/v1/session").json()
        made = exchange(browser, code).json()
        assert made["person"] and (made["name"], made["roles"]) == (by_token["name"], by_token["roles"])
        assert datetime.fromisoformat(made["expires_at"]).timestamp() == expires
        browser.csrf = made["csrf_token"]
        link = browser.request("POST", "/v1/session/links", json={}).json()
        again = exchange(Browser(plane.settings), link["code"]).json()
        assert (again["name"], again["expires_at"]) == (made["name"], made["expires_at"])

    def test_a_link_of_another_provider_is_refused(
        self, plane: Plane, provider: IdentityProvider, serve: Callable[..., Any]
    ) -> None:
        with plane.as_bearer(provider.token()) as client:
            code = client.post("/v1/session/links", json={}).json()["code"]
        second = plane.settings.model_copy(update={"port": free_port(), "oidc": None})
        with serve(second):
            check_problem(exchange(Browser(second), code), 401, "unauthenticated")
