"""Login in a browser by a real identity provider: authorisation code flow with PKCE, state and nonce."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
import pytest

from epochal.service.domain.login_attempts import LoginAttempt, is_console_path
from epochal.service.domain.settings import Settings
from tests.kit.identity_provider import BROWSER_CLIENT, CLIENT_SECRET, IdentityProvider, identity_provider
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane

LOGIN, CALLBACK = "/v1/session/login", "/v1/session/callback"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def settings(settings: Settings, provider: IdentityProvider, tmp_path: Path) -> Settings:
    secret = tmp_path / "client.secret"
    secret.write_text(CLIENT_SECRET + "\n")
    oidc = provider.settings(client=BROWSER_CLIENT, client_secret_file=str(secret), scopes="openid groups")
    return settings.model_copy(update={"oidc": oidc})


@pytest.fixture
def browser(plane: Plane) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=plane.settings.url, trust_env=False, timeout=60) as browser:
        yield browser


def sent_back(browser: httpx.Client, return_to: str = "/console/") -> str:
    """Log in at the provider. Returns the URL to which it sends the browser back."""
    begun = browser.get(LOGIN, params={"return_to": return_to})
    assert begun.status_code == 303, begun.text
    at_provider = httpx.get(begun.headers["location"], trust_env=False)
    assert at_provider.status_code == 302
    return str(at_provider.headers["location"])


def test_a_person_logs_in_and_returns_to_the_view(plane: Plane, browser: httpx.Client) -> None:
    view = "/console/applications/flights?epoch=3#key=JFK"
    answer = browser.get(sent_back(browser, view))
    assert (answer.status_code, answer.headers["location"]) == (303, view)
    cookies = answer.headers.get_list("set-cookie")
    assert [cookie.partition("=")[0] for cookie in cookies] == [
        f"epochal-session-{plane.settings.port}",
        f"epochal-login-{plane.settings.port}",
    ]
    assert all("HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/" in cookie for cookie in cookies)
    assert "Max-Age=0" in cookies[1]
    found = browser.get("/v1/session").json()
    assert (found["name"], found["person"], found["roles"]) == ("ada (127.0.0.1)", True, {"default": "viewer"})
    assert browser.get("/v1/applications").status_code == 200
    (entry,) = [item for item in plane.get("/v1/audit")["items"] if "session" in item["action"]]
    assert (entry["action"], entry["outcome"], entry["token"]) == ("GET " + CALLBACK, 303, "ada (127.0.0.1)")
    assert entry["changes"] and "code" not in str(entry["target"])


def test_the_request_to_the_provider_contains_pkce_state_and_nonce(plane: Plane, browser: httpx.Client) -> None:
    urls = [browser.get(LOGIN).headers["location"] for _ in range(2)]
    first, second = ({name: value for name, (value,) in parse_qs(urlsplit(url).query).items()} for url in urls)
    assert first["prompt"] == "login"  # the endpoint's own query is kept
    assert first["redirect_uri"] == f"{plane.settings.public_url}{CALLBACK}"
    assert (first["scope"], first["code_challenge_method"]) == ("openid groups", "S256")
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) == 43 and first[name] != second[name]


def test_the_answer_of_another_login_is_refused(browser: httpx.Client, plane: Plane) -> None:
    """An attacker cannot log another browser in with a code of the attacker."""
    with httpx.Client(base_url=plane.settings.url, trust_env=False) as attacker:
        url = sent_back(attacker)
    refused = browser.get(url)  # without an own login
    check_problem(refused, 401, "unauthenticated")
    browser.get(LOGIN)
    check_problem(browser.get(url), 401, "unauthenticated")
    assert f"epochal-session-{plane.settings.port}" not in browser.cookies
    check_problem(browser.get("/v1/session"), 401, "unauthenticated")
    entries = [item for item in plane.get("/v1/audit")["items"] if item["action"] == "GET " + CALLBACK]
    assert [item["outcome"] for item in entries] == [401, 401]


def test_a_code_is_used_once(browser: httpx.Client) -> None:
    url = sent_back(browser)
    attempt = dict(browser.cookies)
    assert browser.get(url).status_code == 303
    browser.cookies.clear()
    browser.cookies.update(attempt)
    again = browser.get(url)
    check_problem(again, 401, "unauthenticated")
    assert "invalid_grant" in again.json()["detail"]


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "epochal"},
        {"aud": [BROWSER_CLIENT, "other"], "azp": "other"},
        {"iss": "https://id.example.com"},
        {"exp": 1},
        {"sub": None},
    ],
    ids=repr,
)
def test_id_tokens_for_another_login_are_refused(
    browser: httpx.Client, provider: IdentityProvider, claims: dict[str, Any]
) -> None:
    provider.id_claims = claims
    check_problem(browser.get(sent_back(browser)), 401, "unauthenticated")
    check_problem(browser.get("/v1/session"), 401, "unauthenticated")


def test_an_error_of_the_provider_is_reported(browser: httpx.Client) -> None:
    state = parse_qs(urlsplit(browser.get(LOGIN).headers["location"]).query)["state"][0]
    refused = browser.get(CALLBACK, params={"state": state, "error": "access_denied"})
    check_problem(refused, 401, "unauthenticated")
    assert "access_denied" in refused.json()["detail"]
    mixed = browser.get(CALLBACK, params={"state": state, "code": "x", "iss": "https://id.example.com"})
    check_problem(mixed, 401, "unauthenticated")
    assert "another identity provider" in mixed.json()["detail"]


def test_an_unavailable_provider_is_reported(browser: httpx.Client, provider: IdentityProvider) -> None:
    url = sent_back(browser)
    provider.answers = False
    check_problem(browser.get(url), 503, "issuer-unavailable")
    check_problem(browser.get(LOGIN), 503, "issuer-unavailable")


def test_a_failed_login_opens_the_console_with_the_reason(browser: httpx.Client, provider: IdentityProvider) -> None:
    """Browsers accept ``text/html``, and must not show JSON to people."""
    browser.headers["accept"] = "text/html,application/xhtml+xml,*/*;q=0.8"
    view = "/console/applications/flights?epoch=3"
    state = parse_qs(urlsplit(browser.get(LOGIN, params={"return_to": view}).headers["location"]).query)["state"][0]
    refused = browser.get(CALLBACK, params={"state": state, "error": "<b>access denied; é"})
    assert (refused.status_code, refused.headers["location"]) == (303, view)
    assert refused.headers["cache-control"] == "no-store"
    (cookie,) = refused.headers.get_list("set-cookie")
    assert cookie.startswith("epochal-login-refused=The%20login%20has%20failed.%20") and "Path=/console/" in cookie
    assert "<b>access denied; é" in unquote(cookie.partition(";")[0])
    provider.answers = False
    url = f"{CALLBACK}?{urlencode({'state': state, 'code': 'x'})}"
    for path in (url, f"{LOGIN}?return_to={view}", f"{LOGIN}?return_to=https://evil.example"):
        failed = browser.get(path)
        expected = "/console/" if "evil" in path else view
        assert (failed.status_code, failed.headers["location"]) == (303, expected)
    browser.cookies.clear()
    unknown = browser.get(url)
    assert (unknown.status_code, unknown.headers["location"]) == (303, "/console/")
    assert "has%20not%20begun%20this%20login" in unknown.headers["set-cookie"]


@pytest.mark.parametrize(
    "return_to",
    ["https://evil.example", "//evil.example", "/v1/tokens", "/console", "/console/\\evil", "/console/\r\nX: y", ""],
)
def test_a_login_returns_to_the_console_only(browser: httpx.Client, return_to: str) -> None:
    check_problem(browser.get(LOGIN, params={"return_to": return_to}), 422, "invalid-input")
    assert not is_console_path(return_to)
    assert LoginAttempt.parse(LoginAttempt("a", "b", "c", return_to).text) is None


@pytest.mark.parametrize("text", [None, "", "x", "e30=", "bnVsbA==", "W10=", "é"])
def test_malformed_cookies_of_a_login_are_refused(text: str | None) -> None:
    assert LoginAttempt.parse(text) is None


def test_id_tokens_are_not_accepted_as_bearer_tokens(plane: Plane, provider: IdentityProvider) -> None:
    with plane.as_bearer(provider.token(aud=BROWSER_CLIENT)) as client:
        check_problem(client.get("/v1/applications"), 401, "unauthenticated")


def test_the_ways_to_log_in_are_public(browser: httpx.Client) -> None:
    assert browser.get("/v1/session/methods").json() == {"authentication": True, "provider": "127.0.0.1"}


class TestWithoutClient:
    @pytest.fixture
    def settings(self, settings: Settings, provider: IdentityProvider) -> Settings:
        return settings.model_copy(update={"oidc": provider.settings()})

    def test_browsers_cannot_log_in_by_the_provider(self, plane: Plane, browser: httpx.Client) -> None:
        check_problem(browser.get(LOGIN), 404, "not-found")
        check_problem(browser.get(CALLBACK, params={"code": "x", "state": "y"}), 404, "not-found")
        assert browser.get("/v1/session/methods").json() == {"authentication": True, "provider": None}
