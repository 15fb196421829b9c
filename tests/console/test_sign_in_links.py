"""Sign-in links in a browser, at a control plane without applications."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.console.test_pages import browser as browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plane(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("links"), {"EPOCHAL_WARM_DRIVERS": "0"}) as plane:
        yield plane


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page without a session."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


def link(plane: ControlPlane, path: str = "/console/") -> str:
    with plane.client() as client:
        return client.session.create_link(path).url


def test_a_link_signs_in_once_and_shows_its_page(browser: Browser, page: Page, plane: ControlPlane) -> None:
    url = link(plane, "/console/operations?from=link#key=a")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.goto(url)
    page.wait_for_selector("h1:text-is('Operations')")
    assert page.evaluate("location.pathname + location.search + location.hash") == "/console/operations?from=link#key=a"
    assert page.evaluate("history.length") <= 2  # no entry with the code
    assert not [each for each in sent if "epc_" in each.partition("#")[0]]
    page.reload()
    page.wait_for_selector("h1:text-is('Operations')")

    other = browser.new_context().new_page()
    other.goto(url)
    other.wait_for_selector("text=This sign-in link cannot be used")
    assert "code=" not in other.url
    other.fill("input[name=token]", (plane.home / "admin.token").read_text().strip())
    other.keyboard.press("Enter")
    other.wait_for_selector("h1:text-is('Operations')")
    other.context.close()


def test_a_session_continues_after_a_used_link(page: Page, plane: ControlPlane) -> None:
    url = link(plane)
    page.goto(url)
    page.wait_for_selector("h1:text-is('Applications')")
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("h1:text-is('Applications')")
    page.click("button:text-is('Sign out')")
    page.wait_for_selector("input[name=token]")
    assert page.locator("text=This sign-in link cannot be used").count() == 0


def test_a_link_in_an_open_page_signs_in(page: Page, plane: ControlPlane) -> None:
    page.goto(f"{plane.url}/console/")
    page.wait_for_selector("input[name=token]")
    page.evaluate("url => { location.href = url }", link(plane))
    page.wait_for_selector("h1:text-is('Applications')")
    assert "code=" not in page.url
