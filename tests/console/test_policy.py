"""No page violates the policy for its content: a listener in the page receives every violation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import admin_token, opened, show, sign_in
from tests.console.test_pages import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from epochal.testing.servers.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.long]

LISTEN = """window.violated = [];
document.addEventListener('securitypolicyviolation', event =>
    window.violated.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}`));"""
MORE = {
    "sign-in": ("/missing-page", "main"),
    "diff": ("/applications/hostile/lineage?pick=1,2", ".diff h3"),
    "every epoch": ("/applications/hostile/lineage?zoom=2", ".lineage .snapshot"),
}
DIALOGS = ("Savepoint", "Rescale", "Copy as command")


def test_no_page_and_no_dialog_violates_the_policy(browser: Browser, plane: ControlPlane) -> None:
    with opened(browser) as page:
        page.add_init_script(LISTEN)
        page.goto(f"{plane.url}/console/")
        sign_in(page, admin_token(plane))
        for name, (path, selector) in {**VIEWS, **MORE}.items():
            show(page, f"/console{path}")
            page.wait_for_selector(selector, timeout=20_000)
            assert page.evaluate("window.violated") == [], name
        show(page, "/console/applications/hostile")
        for dialog in DIALOGS:
            page.click(f"header.title button:text-is('{dialog}')")
            page.wait_for_selector("dialog h2")
            page.keyboard.press("Escape")
            page.wait_for_selector("dialog", state="detached")
        assert page.evaluate("window.violated") == []


def test_a_violation_is_noticed(browser: Browser, plane: ControlPlane) -> None:
    """The test above would fail for a page with an inline script, an inline style or a foreign picture."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(LISTEN)
    page.goto(f"{plane.url}/console/")
    page.wait_for_selector("input[name=token]")
    page.evaluate(
        """() => {
            document.body.setAttribute('style', 'color: red');
            document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.wrong = 1' }));
            document.body.append(Object.assign(new Image(), { src: 'https://example.org/picture.png' }));
        }"""
    )
    page.wait_for_function("() => window.violated.length >= 3")
    assert {text.split()[0] for text in page.evaluate("window.violated")} == {
        "style-src-attr",
        "script-src-elem",
        "img-src",
    }
    assert page.evaluate("window.wrong") is None
    context.close()
