"""The retention page: what keeps a snapshot, pins, savepoints, and collections of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import SCRIPT, opened, show, sign_in
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

PATH = "/console/applications/hostile/retention"


def test_an_epoch_is_pinned_and_unpinned(page: Page, plane: ControlPlane) -> None:
    show(page, PATH)
    page.click("button:text-is('Pin an epoch')")
    page.fill("dialog input[type=number]", "1")
    page.fill("dialog input:not([type])", SCRIPT)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"td:has-text('{SCRIPT}') >> nth=0")
    with plane.client() as client:
        annotations = client.application("hostile").annotations
        assert [(pin.epoch, pin.message) for pin in annotations.pins()] == [(1, SCRIPT)]
        page.click("button:has-text('Unpin epoch 1')")
        page.wait_for_selector("dialog >> text=Epoch 1 is affected")
        page.click("dialog button.danger")
        eventually(lambda: annotations.pins() == [], 30)
    page.wait_for_selector("button:has-text('Unpin epoch 1')", state="detached")


def test_a_savepoint_is_deleted_after_naming_what_else_keeps_it(page: Page, plane: ControlPlane) -> None:
    with plane.client() as client:
        application = client.application("hostile")
        client.operations.wait(application.savepoints.create("going"))
        epoch = application.savepoints.get("going").epoch
        application.annotations.pin(epoch)
        show(page, PATH)
        page.click("button:has-text('Delete going')")
        page.wait_for_selector("dialog >> text=/It remains kept by: .*pin/")
        page.click("dialog button.danger")
        eventually(lambda: "going" not in [each.name for each in application.savepoints.list()], 30)
        application.annotations.unpin(epoch)


def test_a_collection_begins_after_its_plan(page: Page, plane: ControlPlane) -> None:
    show(page, PATH)
    page.click("button:text-is('Plan a collection')")
    page.wait_for_selector("dialog >> text=grace period")
    page.click("dialog button.danger")
    page.wait_for_selector("section[aria-labelledby=collections-title] li >> text=/deleted, .* needed/", timeout=60_000)
    with plane.client() as client:
        assert any(each.kind == "collect" and each.state == "succeeded" for each in client.operations.list(limit=50))


def test_viewers_see_no_action(browser: Browser, plane: ControlPlane) -> None:
    with plane.client() as client:
        token = client.tokens.create("looks", "viewer")
        assert token.token
        with opened(browser) as page:
            page.goto(f"{plane.url}{PATH}")
            sign_in(page, token.token)
            page.wait_for_selector("text=Latest epoch")
            assert page.locator("main button").all_inner_texts() == ["Copy as command"] * 2
        client.tokens.delete(token.id)
