"""Cookies and CSRF tokens of sessions."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import TYPE_CHECKING

import pytest

from epochal.service.app import create_app
from epochal.service.domain.permissions import Access
from tests.service.browser import Browser, audited, stored
from tests.service.problems import check_problem
from tests.service.test_security import endpoints, filled

if TYPE_CHECKING:
    from tests.service.conftest import Plane


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


@pytest.mark.parametrize("cookie", ["", "x", "eps_", f"eps_{'0' * 32}_{'x' * 43}", f"ept_{'0' * 32}_{'x' * 43}", '"\\'])
def test_malformed_and_unknown_cookies_are_refused(plane: Plane, cookie: str) -> None:
    with plane.as_bearer(None) as client:
        headers = {"Cookie": f"epochal-session-{plane.settings.port}={cookie}"}
        check_problem(client.get("/v1/session", headers=headers), 401, "unauthenticated")


def test_answers_to_sessions_are_private(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    answer = browser.get("/v1/applications")
    assert (answer.headers["cache-control"], answer.headers["vary"]) == ("private, no-cache", "cookie")
    assert "vary" not in plane.client.get("/v1/applications").headers
