"""Sign-in links in a browser, at a control plane without applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import admin_token, opened, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]


def link(plane: ControlPlane, path: str = "/console/") -> str:
    with plane.client() as client:
        return client.sessions.create_link(path).url


def test_a_link_signs_in_once_and_shows_its_page(browser: Browser, signed_out: Page, new_plane: ControlPlane) -> None:
    url = link(new_plane, "/console/operations?from=link#key=a")
    sent: list[str] = []
    signed_out.on("request", lambda request: sent.append(request.url))
    signed_out.goto(url)
    signed_out.wait_for_selector("h1:text-is('Operations')")
    assert signed_out.evaluate("location.href") == f"{new_plane.url}/console/operations?from=link#key=a"
    assert signed_out.evaluate("history.length") <= 2  # no entry with the code
    assert not [each for each in sent if "epc_" in each.partition("#")[0]]
    signed_out.reload()
    signed_out.wait_for_selector("h1:text-is('Operations')")

    with opened(browser) as other:
        other.goto(url)
        other.wait_for_selector("text=This sign-in link cannot be used")
        assert "code=" not in other.url
        sign_in(other, admin_token(new_plane))
        other.wait_for_selector("h1:text-is('Operations')")


def test_a_session_continues_after_a_used_link(signed_out: Page, new_plane: ControlPlane) -> None:
    url = link(new_plane)
    signed_out.goto(url)
    signed_out.wait_for_selector("h1:text-is('Applications')")
    signed_out.goto("about:blank")
    signed_out.goto(url)
    signed_out.wait_for_selector("h1:text-is('Applications')")
    signed_out.click("button:text-is('Sign out')")
    signed_out.wait_for_selector("input[name=token]")
    assert signed_out.locator("text=This sign-in link cannot be used").count() == 0


def test_a_link_in_an_open_page_signs_in(signed_out: Page, new_plane: ControlPlane) -> None:
    signed_out.goto(f"{new_plane.url}/console/")
    signed_out.wait_for_selector("input[name=token]")
    signed_out.evaluate("url => { location.href = url }", link(new_plane))
    signed_out.wait_for_selector("h1:text-is('Applications')")
    assert "code=" not in signed_out.url
