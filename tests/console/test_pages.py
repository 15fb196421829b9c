"""Every page of the console in a browser, at a real control plane with a running application and hostile names.

What is not marked ``long`` is the smoke run of the console: less than a minute with the start of the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import SCRIPT, add_axe, committed, show, violations
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

VIEWS = {
    "applications": ("/applications", ".approw .name"),
    "overview": ("/applications/hostile", ".graph .node.stateful"),
    "node": ("/applications/hostile?node=counts", ".codeline.defining"),
    "state": (f"/applications/hostile/state#key={quote(quote(SCRIPT, safe=''), safe='')}", ".blame"),
    "lineage": ("/applications/hostile/lineage?pick=1", ".picked h2"),
    "versions": ("/applications/hostile/versions", "#version-title"),
    "upgrade": ("/applications/hostile/versions/upgrade", "#upgrade-title"),
    "retention": ("/applications/hostile/retention", "text=Latest epoch"),
    "sinks and operations": ("/applications/hostile/work", "text=No transaction waits"),
    "history": ("/applications/hostile/history", ".history li"),
    "log": ("/applications/hostile/logs", ".logline"),
    "operations": ("/operations", "details.opening"),
    "audit": ("/audit?application=hostile", ".auditrow"),
    "access": ("/access", "[aria-label=Tokens]"),
    "events": ("/events", "main select"),
}
SQUEEZED = """[...document.querySelectorAll('.lines .grow')]
    .filter(each => each.innerText.length > 20 && each.clientWidth < 150).map(each => each.innerText)"""
"""Messages with a few letters in each line."""


@pytest.mark.parametrize("width", [1280, 390])
def test_each_page_shows_its_data_and_fits(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for name, (path, selector) in VIEWS.items():
        show(page, f"/console{path}")
        page.wait_for_selector(selector, timeout=20_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(SQUEEZED) == [], name


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_axe_finds_no_violation(browser: Browser, page: Page, theme: str) -> None:
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    add_axe(page)
    for name, (path, selector) in VIEWS.items():
        show(page, f"/console{path}")
        page.wait_for_selector(selector, timeout=20_000)
        assert violations(page) == [], name


@pytest.mark.long
def test_a_key_shows_its_history_and_a_link_selects_an_epoch(page: Page) -> None:
    show(page, "/console/applications/hostile/state")
    page.click(f"text={SCRIPT}")
    page.wait_for_selector("text=Last change")
    page.wait_for_selector(".slider")
    oldest = page.locator(".key-view tbody button").last
    epoch = oldest.inner_text().split()[-1]
    oldest.click()
    page.wait_for_url(f"**epoch={epoch}*")
    page.wait_for_selector(f".slider >> text=epoch {epoch}")


@pytest.mark.long
def test_two_snapshots_are_compared(page: Page) -> None:
    show(page, "/console/applications/hostile/lineage?pick=1,2")
    page.wait_for_selector(".diff .opening")
    page.click(".diff .opening summary")
    page.wait_for_selector(".diff tbody tr")


@pytest.mark.long
def test_a_savepoint_is_created_by_keyboard(page: Page, plane: ControlPlane) -> None:
    show(page, "/console/applications/hostile")
    page.locator("button:text-is('Savepoint')").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog input")
    page.locator("dialog input").first.focus()
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    with plane.client() as client:
        savepoints = client.application("hostile").savepoints
        eventually(lambda: "by-keyboard" in [each.name for each in savepoints.list()], 60)


@pytest.mark.long
def test_an_epoch_appears_without_reloading(page: Page, plane: ControlPlane) -> None:
    show(page, "/console/applications/hostile")
    page.wait_for_selector(".epoch.committed")
    with plane.client() as client:
        before = committed(client)
        page.wait_for_selector(f".epoch.committed >> text=/^{before + 1}$/", timeout=60_000)


@pytest.mark.long
def test_a_link_opens_its_view_in_a_session(page: Page, plane: ControlPlane) -> None:
    """A page that is loaded again continues the session of its cookie, and a mutation carries the CSRF token."""
    response = page.goto(f"{plane.url}/console/applications/hostile/lineage?pick=1")
    assert response is not None
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    page.wait_for_selector(".picked h2")
    page.goto(f"{plane.url}/console/applications/hostile")
    page.click("button:text-is('Savepoint')")
    page.locator("dialog input").first.fill("by-link")
    page.keyboard.press("Enter")
    with plane.client() as client:
        savepoints = client.application("hostile").savepoints
        eventually(lambda: "by-link" in [each.name for each in savepoints.list()], 60)
    page.click("button:text-is('Sign out')")
    page.wait_for_selector("input[name=token]")
    page.reload()
    page.wait_for_selector("input[name=token]")


def test_a_wrong_token_is_refused(browser: Browser, plane: ControlPlane) -> None:
    page = browser.new_page()
    page.goto(f"{plane.url}/console/")
    page.fill("input[name=token]", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    page.close()
