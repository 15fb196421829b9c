"""The audit log and the access page: filters, tokens and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import opened, show, sign_in
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_audit_log_is_filtered_and_continued(page: Page, plane: ControlPlane) -> None:
    with plane.client() as client:
        made = client.tokens.create("audited", "viewer")
        assert made.token
        client.tokens.delete(made.id)
        for number in range(51):
            client.application("hostile").annotations.write_message(1, f"message {number}")
    show(page, "/console/audit")
    page.wait_for_selector(".auditrow")
    assert page.locator(".auditrow").count() == 50
    page.click("button:text-is('Older calls')")
    page.locator(".auditrow").nth(50).wait_for()
    page.fill("form [list=audit-actions]", "DELETE /v1/tokens/{id}")
    page.keyboard.press("Enter")
    page.wait_for_url("**action=DELETE*")
    page.locator(".auditrow code:text-is('DELETE')").first.wait_for()
    assert {text.split()[0] for text in page.locator(".auditrow .what").all_inner_texts()} == {"DELETE"}
    page.locator(".auditrow").first.click()
    page.wait_for_selector("td:has-text('token audited')")
    page.click("button:text-is('Clear')")
    page.wait_for_url("**/console/audit")
    # The address of the filters shows the same calls to a colleague.
    page.goto(f"{plane.url}/console/audit?application=hostile&until=2020-01-01T00:00:00.000Z")
    page.wait_for_selector("text=No call matches.")


def test_a_token_is_created_shown_once_replaced_and_revoked(page: Page, plane: ControlPlane) -> None:
    show(page, "/console/access")
    page.click("button:text-is('Create a token')")
    page.fill("dialog input[pattern]", "by-page")
    page.select_option("dialog select", "operator")
    page.click("dialog button.primary")
    secret = page.locator("dialog .secret pre").inner_text().strip()
    with plane.client() as client:
        (token,) = [each for each in client.tokens.list() if each.name == "by-page"]
        assert token.roles == {"default": "operator"} and token.expires_at is not None
        page.click("dialog button:text-is('Close')")
        page.wait_for_selector("dialog", state="detached")
        assert secret not in page.content()
        page.click("button:has-text('replace by-page')")
        page.click("dialog button.danger")
        assert page.locator("dialog .secret pre").inner_text().strip() != secret
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
        page.click("button:has-text('revoke by-page')")
        page.click("dialog button.danger")
        eventually(lambda: "by-page" not in [each.name for each in client.tokens.list()], 30)


def test_an_administrator_ends_a_session(browser: Browser, page: Page, plane: ControlPlane) -> None:
    with plane.client() as client:
        made = client.tokens.create("leaves", "viewer")
        assert made.token
        with opened(browser) as other:
            other.goto(f"{plane.url}/console/access")
            sign_in(other, made.token)
            other.wait_for_selector("text=Your sessions")
            # Others see neither tokens nor the audit log.
            assert other.locator("[aria-label=Tokens]").count() == 0
            assert other.locator("nav >> text=Audit").count() == 0
            assert other.locator("[aria-label=Sessions] tbody tr").count() == 1
            show(page, "/console/access")
            page.click("button:has-text('the session of leaves')")
            page.click("dialog button.danger")
            eventually(lambda: "leaves" not in [each.name for each in client.sessions.list()], 30)
            other.reload()
            other.wait_for_selector("input[name=token]")
        client.tokens.delete(made.id)
