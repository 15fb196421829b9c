"""Login by an identity provider, in a browser: the view survives it, and a failed login shows why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.console.browsing import add_axe, admin_token, opened, sign_in, violations
from tests.kit.identity_provider import BROWSER_CLIENT, CLIENT_SECRET, IdentityProvider, identity_provider

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

VIEW = "/console/operations?from=link#key=JFK%2CLAX&table=delays"
SIGN_IN = "a:text-is('Sign in with 127.0.0.1')"


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def plane(
    browser: Browser, provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("people")
    secret, oidc = folder / "client.secret", folder / "oidc.json"
    secret.write_text(CLIENT_SECRET)
    settings = provider.settings(client=BROWSER_CLIENT, client_secret_file=str(secret))
    oidc.write_text(settings.model_dump_json(exclude_unset=True))
    with control_plane(folder, {"EPOCHAL_OIDC_FILE": str(oidc)}) as plane:
        yield plane


@pytest.fixture
def page(browser: Browser, plane: ControlPlane, provider: IdentityProvider) -> Iterator[Page]:
    """The page for signing in, at a view whose address has a fragment."""
    provider.id_claims, provider.refusal, provider.answers = {}, None, True
    with opened(browser) as page:
        page.goto(f"{plane.url}{VIEW}")
        page.wait_for_selector(SIGN_IN)
        yield page


def test_a_login_returns_to_the_view_with_its_fragment(page: Page, plane: ControlPlane) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.click(SIGN_IN)
    page.wait_for_selector("h1:text-is('Operations')")
    assert page.evaluate("location.href") == f"{plane.url}{VIEW}"
    assert any("/authorize" in each for each in sent)
    assert not [each for each in sent if "JFK" in each.partition("#")[0]]  # keys are not sent to servers
    page.click("button:text-is('Sign out')")
    page.wait_for_selector(SIGN_IN)
    page.goto(f"{plane.url}/console/operations?from=link")
    page.wait_for_selector(SIGN_IN)
    assert page.evaluate("location.hash") == ""  # restored once


def test_a_failed_login_shows_the_reason_and_the_ways_to_sign_in(
    page: Page, plane: ControlPlane, provider: IdentityProvider
) -> None:
    provider.id_claims = {"nonce": "another"}
    page.click(SIGN_IN)
    page.wait_for_selector("text=The login has failed.")
    assert page.evaluate("location.href") == f"{plane.url}{VIEW}"
    add_axe(page)
    assert violations(page) == []
    page.reload()
    page.wait_for_selector(SIGN_IN)
    assert page.locator("text=The login has failed.").count() == 0
    provider.id_claims = {}
    page.click(SIGN_IN)
    page.wait_for_selector("h1:text-is('Operations')")


def test_the_text_of_a_provider_is_not_markup(page: Page, plane: ControlPlane, provider: IdentityProvider) -> None:
    provider.refusal = "<img src=x onerror=window.wrong=1>"
    page.click(SIGN_IN)
    page.wait_for_selector("text=refused the login: <img src=x")
    sign_in(page, admin_token(plane))
    page.wait_for_selector("h1:text-is('Operations')")


def test_a_login_that_this_browser_has_not_begun_is_explained(page: Page, plane: ControlPlane) -> None:
    page.goto(f"{plane.url}/v1/session/callback?state=x&code=y")
    page.wait_for_selector("text=This browser has not begun this login")
    page.wait_for_selector(SIGN_IN)


def test_an_unavailable_provider_is_explained(page: Page, plane: ControlPlane, provider: IdentityProvider) -> None:
    provider.answers = False
    page.click(SIGN_IN)
    page.wait_for_selector("text=The login has failed. Logins by the identity provider")
    assert page.evaluate("location.href") == f"{plane.url}{VIEW}"
