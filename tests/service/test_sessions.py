"""Sessions of browsers: cookies instead of tokens, with the same rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import select, update

from epochal.service.api.access import is_login
from epochal.service.app import create_app
from epochal.service.catalog import sessions as rows
from epochal.service.catalog.models import Token, UserSession
from epochal.service.domain.permissions import Access
from epochal.service.domain.setting_sections import Limits, Sessions
from epochal.service.domain.settings import Settings
from epochal.service.runtime.expiry import CatalogExpiry
from epochal.wire.tokens import Role
from tests.kit.identity_provider import IdentityProvider, identity_provider
from tests.service.conftest import free_port
from tests.service.problems import check_problem
from tests.service.test_security import endpoints, filled

if TYPE_CHECKING:
    from tests.service.conftest import Plane


class Browser:
    """A client that sends cookies as a browser does, and no token. ``csrf``: sent with each request, if set."""

    def __init__(self, settings: Settings, csrf: str | None = None, cookie: str | None = None) -> None:
        self.client = httpx.Client(base_url=settings.url, trust_env=False, timeout=60)
        self.csrf = csrf
        self.name = f"epochal-session-{settings.port}"
        if cookie is not None:
            self.client.cookies.set(self.name, cookie, domain="127.0.0.1", path="/")

    def log_in(self, token: str) -> dict[str, Any]:
        answer = self.client.post("/v1/session", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 201, answer.text
        body: dict[str, Any] = answer.json()
        self.csrf = body["csrf_token"]
        return body

    @property
    def cookie(self) -> str:
        return str(self.client.cookies[self.name])

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {} if self.csrf is None else {"X-CSRF-Token": self.csrf}
        return self.client.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)

    def get(self, path: str = "/v1/session", **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)


@pytest.fixture
def browser(plane: Plane) -> Iterator[Browser]:
    browser = Browser(plane.settings)
    yield browser
    browser.client.close()


def stored(plane: Plane) -> list[UserSession]:
    with plane.control.database.reading() as session:
        return list(session.scalars(select(UserSession).order_by(UserSession.id)))


def change(plane: Plane, **values: Any) -> None:
    """Change all rows, as time would."""
    with plane.control.database.writing() as session:
        session.execute(update(UserSession).values(**values))
    plane.control.authenticator.forget()


def audited(plane: Plane, action: str) -> list[dict[str, Any]]:
    return [item for item in plane.get("/v1/audit")["items"] if item["action"] == action]


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


@pytest.mark.parametrize("csrf", [None, "", "0" * 64, "é"])
def test_changes_by_a_session_require_its_csrf_token(plane: Plane, browser: Browser, csrf: str | None) -> None:
    """Every endpoint that is called with another method than GET."""
    browser.log_in(plane.admin_token)
    own, browser.csrf = browser.csrf, None
    headers = {} if csrf is None else {"X-CSRF-Token": csrf.encode("latin-1")}
    tried = 0
    for method, path, access in endpoints(create_app(plane.settings)):
        if method in ("GET", "HEAD") or access in (Access.DRIVER, Access.POD):
            continue
        answer = browser.request(method, filled(path), headers=headers)
        check_problem(answer, 403, "forbidden")
        assert "X-CSRF-Token" in answer.json()["detail"]
        tried += 1
    assert tried > 30
    assert browser.get("/v1/tokens").status_code == 200  # reads need none
    browser.csrf = own
    assert browser.request("POST", "/v1/tokens", json={"name": "made", "role": "viewer"}).status_code == 201


def test_the_csrf_token_of_another_session_is_refused(plane: Plane, browser: Browser) -> None:
    first = browser.log_in(plane.admin_token)["csrf_token"]
    other = Browser(plane.settings)
    assert other.log_in(plane.admin_token)["csrf_token"] != first
    other.csrf = first
    check_problem(other.request("DELETE", "/v1/session"), 403, "forbidden")
    (refused,) = audited(plane, "DELETE /v1/session")
    assert (refused["outcome"], refused["token"]) == (403, "admin")


def test_authorization_takes_precedence_over_the_cookie(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    browser.csrf = None
    viewer = {"Authorization": f"Bearer {plane.token('viewer')}"}
    assert browser.get(headers=viewer).json()["name"] == "a-viewer"
    check_problem(browser.get("/v1/tokens", headers=viewer), 403, "forbidden")
    for invalid in ("", "Bearer", "Bearer nonsense", "Basic YTpi"):
        check_problem(browser.get("/v1/tokens", headers={"Authorization": invalid}), 401, "unauthenticated")
    admin = {"Authorization": f"Bearer {plane.admin_token}"}
    made = browser.request("POST", "/v1/tokens", json={"name": "made", "role": "viewer"}, headers=admin)
    assert made.status_code == 201  # without a CSRF token


def test_a_look_up_uses_the_token_and_not_the_cookie(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    path = "/v1/applications/none/state/t/keys/1"
    check_problem(browser.get(path), 404, "not-found")
    check_problem(browser.get(path, headers={"Authorization": "Bearer nonsense"}), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("host", "name", "attributes"),
    [
        ("127.0.0.1:8765", "epochal-session-8765", "HttpOnly; Max-Age={}; Path=/; SameSite=lax"),
        ("localhost", "epochal-session-80", "HttpOnly; Max-Age={}; Path=/; SameSite=lax"),
        ("[::1]:1", "epochal-session-1", "HttpOnly; Max-Age={}; Path=/; SameSite=lax"),
        ("epochal.example.com", "__Host-epochal-session", "HttpOnly; Max-Age={}; Path=/; SameSite=lax; Secure"),
        ("127.0.0.1.example.com", "__Host-epochal-session", "HttpOnly; Max-Age={}; Path=/; SameSite=lax; Secure"),
    ],
)
def test_cookies_are_secure_except_on_loopback(plane: Plane, host: str, name: str, attributes: str) -> None:
    answer = plane.client.post("/v1/session", headers={"Host": host})
    value, _, found = answer.headers["set-cookie"].partition("; ")
    assert value.startswith(f"{name}=eps_")
    assert found == attributes.format(SimpleCookie(answer.headers["set-cookie"])[name]["max-age"])
    headers = {"Host": host, "Cookie": value, "X-CSRF-Token": answer.json()["csrf_token"]}
    with plane.as_bearer(None) as client:
        assert client.get("/v1/session", headers=headers).json()["id"] == answer.json()["id"]
        ended = client.delete("/v1/session", headers=headers)
    assert ended.status_code == 204
    assert ended.headers["set-cookie"] == f'{name}=""; {attributes.format(0)}'


def test_a_secure_cookie_is_not_accepted_under_the_name_of_a_plain_one(plane: Plane) -> None:
    """Another site of the machine can set the plain name, but not the one with the prefix."""
    value = plane.client.post("/v1/session").headers["set-cookie"].partition(";")[0].partition("=")[2]
    with plane.as_bearer(None) as client:
        headers = {"Host": "epochal.example.com", "Cookie": f"epochal-session-{plane.settings.port}={value}"}
        check_problem(client.get("/v1/session", headers=headers), 401, "unauthenticated")


def test_a_cookie_is_refused_after_the_session_ended(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    cookie, csrf = browser.cookie, browser.csrf
    assert browser.request("DELETE", "/v1/session").status_code == 204
    assert browser.name not in browser.client.cookies
    replayed = Browser(plane.settings, csrf, cookie)
    for answer in (replayed.get(), replayed.get("/v1/tokens"), replayed.request("DELETE", "/v1/session")):
        check_problem(answer, 401, "unauthenticated")
    assert stored(plane) == []


def test_the_secret_of_a_cookie_is_not_chosen_by_the_browser(plane: Plane, browser: Browser) -> None:
    """A cookie that an attacker has set in another browser does not become its session."""
    fixed = f"eps_{'0' * 32}_{'x' * 43}"
    victim = Browser(plane.settings, cookie=fixed)
    check_problem(victim.get(), 401, "unauthenticated")
    victim.log_in(plane.admin_token)
    (row,) = stored(plane)
    assert fixed not in victim.client.cookies.values() and row.id != "0" * 32
    check_problem(Browser(plane.settings, cookie=fixed).get(), 401, "unauthenticated")


def test_a_login_ends_the_previous_session_of_the_browser(plane: Plane, browser: Browser) -> None:
    attacker = Browser(plane.settings)
    attacker.log_in(plane.token("viewer"))
    browser = Browser(plane.settings, cookie=attacker.cookie)
    browser.client.cookies.delete(browser.name)
    login = {"Authorization": f"Bearer {plane.admin_token}", "Cookie": f"{browser.name}={attacker.cookie}"}
    browser.client.post("/v1/session", headers=login)
    check_problem(attacker.get(), 401, "unauthenticated")
    assert browser.get().json()["name"] == "admin"
    forged = f"{stored(plane)[0].id}_{'x' * 43}"
    plane.client.post("/v1/session", headers={"Cookie": f"{browser.name}=eps_{forged}"})
    assert browser.get().status_code == 200  # the id alone does not end a session


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


@pytest.mark.parametrize("how", ["delete", "rotate", "project"])
def test_a_revoked_token_ends_its_sessions(plane: Plane, how: str) -> None:
    plane.post("/v1/projects", 201, name="pricing")
    path = "/v1/projects/pricing/tokens" if how == "project" else "/v1/tokens"
    made = plane.post(path, 201, name="ci", role="author")
    browser = Browser(plane.settings)
    browser.log_in(made["token"])
    assert browser.get().status_code == 200
    match how:
        case "delete":
            plane.client.delete(f"/v1/tokens/{made['id']}")
        case "rotate":
            plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
        case _:
            plane.client.delete("/v1/projects/pricing")
    check_problem(browser.get(), 401, "unauthenticated")
    assert stored(plane) == []


def test_a_token_that_an_earlier_version_deleted_ends_its_sessions(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.token("viewer"))
    with plane.control.database.writing() as session:
        session.delete(session.scalars(select(Token).where(Token.name == "a-viewer")).one())
    plane.control.authenticator.forget()
    check_problem(browser.get(), 401, "unauthenticated")
    assert plane.get("/v1/sessions")["items"] == []
    assert CatalogExpiry(plane.control.database, plane.settings.kept).expire_sessions()
    assert stored(plane) == []


def test_a_session_ends_with_its_token(plane: Plane, browser: Browser) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    token = plane.post("/v1/tokens", 201, name="short", role="viewer", expires_at=at.isoformat())["token"]
    assert datetime.fromisoformat(browser.log_in(token)["expires_at"]) == at
    while browser.get().status_code == 200:
        pass
    assert datetime.now(UTC) >= at
    check_problem(browser.get(), 401, "unauthenticated")


def test_roles_are_those_of_the_token_now(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.token("author"))
    with plane.control.database.writing() as session:
        session.execute(update(Token).where(Token.name == "a-author").values(roles={"default": "viewer"}))
    plane.control.authenticator.forget()
    assert browser.get().json()["roles"] == {"default": "viewer"}
    refused = browser.request("POST", "/v1/applications", json={})
    check_problem(refused, 403, "forbidden")


@pytest.mark.parametrize(("column", "hours"), [("expires_at", 0), ("last_used_at", -2)])
def test_expired_and_idle_sessions_end_and_are_deleted(plane: Plane, browser: Browser, column: str, hours: int) -> None:
    browser.log_in(plane.admin_token)
    expiry = CatalogExpiry(plane.control.database, plane.settings.kept, plane.settings.sessions)
    assert not expiry.expire_sessions()
    change(plane, **{column: datetime.now(UTC) + timedelta(hours=hours, minutes=1)})
    assert browser.get().status_code == 200
    change(plane, **{column: datetime.now(UTC) + timedelta(hours=hours)})
    check_problem(browser.get(), 401, "unauthenticated")
    assert plane.get("/v1/sessions")["items"] == []
    assert expiry.expire_sessions() and not expiry.expire_sessions()
    assert stored(plane) == []


def test_use_extends_an_idle_session(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    before = datetime.now(UTC) - timedelta(hours=1)
    change(plane, last_used_at=before)
    browser.get("/v1/applications")
    (row,) = stored(plane)
    assert row.last_used_at > before + timedelta(minutes=59)
    plane.control.authenticator.forget()
    browser.get("/v1/applications")
    assert stored(plane)[0].last_used_at == row.last_used_at  # stored once a minute


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


def test_answers_to_sessions_are_private(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    answer = browser.get("/v1/applications")
    assert (answer.headers["cache-control"], answer.headers["vary"]) == ("private, no-cache", "cookie")
    assert "vary" not in plane.client.get("/v1/applications").headers


def test_without_authentication_sessions_are_not_needed(settings: Settings, serve: Callable[..., Any]) -> None:
    with serve(settings.model_copy(update={"authentication": False})):
        browser = Browser(settings, cookie=f"eps_{'0' * 32}_{'x' * 43}")
        answer = browser.get().json()
        assert (answer["name"], answer["roles"], answer["id"]) == ("anonymous", {"default": "admin"}, None)
        check_problem(browser.request("POST", "/v1/session"), 409, "conflict")
        foreign = browser.get(headers={"Origin": "https://evil.example.org"})
        check_problem(foreign, 403, "forbidden")


@pytest.mark.parametrize("cookie", ["", "x", "eps_", f"eps_{'0' * 32}_{'x' * 43}", f"ept_{'0' * 32}_{'x' * 43}", '"\\'])
def test_malformed_and_unknown_cookies_are_refused(plane: Plane, cookie: str) -> None:
    with plane.as_bearer(None) as client:
        headers = {"Cookie": f"epochal-session-{plane.settings.port}={cookie}"}
        check_problem(client.get("/v1/session", headers=headers), 401, "unauthenticated")


class TestPeople:
    """Sessions from tokens of an identity provider."""

    @pytest.fixture
    def provider(self) -> Iterator[IdentityProvider]:
        with identity_provider() as provider:
            yield provider

    @pytest.fixture
    def settings(self, settings: Settings, provider: IdentityProvider) -> Settings:
        return settings.model_copy(update={"oidc": provider.settings()})

    def test_a_person_has_the_same_identity_and_roles(
        self, plane: Plane, browser: Browser, provider: IdentityProvider
    ) -> None:
        token = provider.token(groups=["readers", "builders", "unmapped"])
        made = browser.log_in(token)
        with plane.as_bearer(token) as bearer:
            by_token = bearer.get("/v1/session").json()
        assert made["person"] and (made["name"], made["roles"]) == (by_token["name"], by_token["roles"])
        (row,) = stored(plane)
        assert row.claims is not None and row.claims["groups"] == ["readers", "builders"]
        assert browser.request("POST", "/v1/applications", json={}).status_code == 422
        check_problem(browser.get("/v1/tokens"), 403, "forbidden")

    def test_the_session_ends_with_the_token_of_the_person(
        self, plane: Plane, browser: Browser, provider: IdentityProvider
    ) -> None:
        expires = int(time.time()) + 300
        made = browser.log_in(provider.token(exp=expires))
        assert datetime.fromisoformat(made["expires_at"]).timestamp() == expires

    @pytest.mark.parametrize("seconds", [-60, -1])
    def test_an_expired_token_creates_no_session(
        self, plane: Plane, browser: Browser, provider: IdentityProvider, seconds: int
    ) -> None:
        headers = {"Authorization": f"Bearer {provider.token(exp=time.time() + seconds)}"}
        check_problem(browser.client.post("/v1/session", headers=headers), 401, "unauthenticated")
        assert stored(plane) == []

    def test_a_session_of_a_provider_that_is_no_longer_configured_ends(
        self, plane: Plane, browser: Browser, provider: IdentityProvider, serve: Callable[..., Any]
    ) -> None:
        browser.log_in(provider.token())
        for oidc in (None, provider.settings(audience="another"), provider.settings(issuer="https://id.example.com")):
            second = plane.settings.model_copy(update={"port": free_port(), "oidc": oidc})
            with serve(second):
                check_problem(Browser(second, cookie=browser.cookie).get(), 401, "unauthenticated")
        fewer = provider.settings(roles={"readers": {"other": "viewer"}})
        second = plane.settings.model_copy(update={"port": free_port(), "oidc": fewer})
        with serve(second):
            assert Browser(second, cookie=browser.cookie).get().json()["roles"] == {"other": "viewer"}


def test_settings_limit_the_duration(settings: Settings, serve: Callable[..., Any]) -> None:
    brief = settings.model_copy(update={"sessions": Sessions(hours=0.5, idle_hours=0.25)})
    with serve(brief) as (_, token):
        made = Browser(settings).log_in(token)
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert (lasts, made["idle_seconds"]) == (timedelta(minutes=30), 900)
