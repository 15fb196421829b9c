"""Actions of the lineage page in a browser: fork, rollback, pin, tags, messages and export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import SCRIPT, add_axe, opened, show, sign_in, violations
from tests.console.lineage.conftest import FLIGHTS
from tests.service.lookups import DELAYS, StateDriver, route

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.service.conftest import Plane

pytestmark = [pytest.mark.slow, pytest.mark.long]

LINEAGE = "/console/applications/flights/lineage"


def pick(page: Page, name: str) -> None:
    show(page, f"{LINEAGE}?pick={name}&around={name}")
    page.wait_for_selector(f"#picked-title:text-is('flights, epoch {name}')")


def submit(page: Page) -> None:
    page.locator("dialog button[type=submit]").click()


def test_a_tag_is_added_moved_and_removed(page: Page, plane: Plane) -> None:
    pick(page, "7")
    page.click("button:text-is('Add a tag')")
    page.locator("dialog input").first.fill("checked")
    submit(page)
    page.locator(".snapshot.picked .mark.tag", has_text="checked").wait_for()
    pick(page, "26")
    page.click("button:text-is('Add a tag')")
    page.locator("dialog input").first.fill("checked")
    submit(page)
    page.wait_for_selector("dialog [role=alert]")
    page.check("dialog input[type=checkbox]")
    submit(page)
    page.locator(".snapshot.picked .mark.tag", has_text="checked").wait_for()
    assert [(tag["name"], tag["epoch"]) for tag in plane.get(f"{FLIGHTS}/tags")["items"]] == [("checked", 26)]
    page.click("[aria-label='Remove the tag checked']")
    page.wait_for_function("() => !document.querySelector('.mark.tag')")
    assert plane.get(f"{FLIGHTS}/tags")["items"] == []


def test_a_message_is_written_edited_and_deleted(page: Page, plane: Plane) -> None:
    pick(page, "7")
    page.click("button:text-is('Write a message')")
    page.fill("dialog textarea", SCRIPT)
    submit(page)
    page.locator(".snapshot.picked bdi", has_text=SCRIPT).wait_for()
    page.click("button:text-is('Edit the message')")
    page.fill("dialog textarea", "better")
    submit(page)
    page.locator(".snapshot.picked bdi", has_text="better").wait_for()
    page.click("button:text-is('Edit the message')")
    page.fill("dialog textarea", "")
    page.click("dialog button:text-is('Delete the message')")
    page.wait_for_selector("button:text-is('Write a message')")
    assert plane.client.get(f"{FLIGHTS}/snapshots/7/message").status_code == 404


def test_a_snapshot_is_pinned_and_unpinned(page: Page, plane: Plane) -> None:
    pick(page, "26")
    page.click("button:text-is('Pin')")
    page.locator("dialog input").fill("for the report")
    submit(page)
    page.wait_for_selector("button:text-is('Unpin')")
    assert [pin["epoch"] for pin in plane.get(f"{FLIGHTS}/pins")["items"]] == [26]
    page.click("button:text-is('Unpin')")
    page.wait_for_selector("button:text-is('Pin')")
    assert plane.get(f"{FLIGHTS}/pins")["items"] == []


def test_an_export_leads_to_its_operation(page: Page, plane: Plane) -> None:
    pick(page, "26")
    page.click("button:text-is('Export')")
    submit(page)
    page.wait_for_url("**/console/operations?operation=*")
    page.locator("details.opening", has_text="export").first.wait_for()
    assert plane.get("/v1/operations")["items"][0]["kind"] == "export"


def test_a_fork_has_its_own_parameters(page: Page, plane: Plane) -> None:
    pick(page, "26")
    page.click("button:text-is('Fork from here')")
    page.locator("dialog input").first.fill("flights")
    submit(page)
    page.wait_for_selector("dialog [role=alert] >> text=flights")
    page.locator("dialog input").first.fill("eager")
    page.fill("dialog textarea", "{")
    submit(page)
    page.wait_for_selector("dialog [role=alert] >> text=not valid JSON")
    page.fill("dialog textarea", '{"out": "/data/eager"}')
    page.locator("dialog input").last.fill(SCRIPT)
    submit(page)
    page.wait_for_url("**/console/applications/eager")
    forked = plane.get("/v1/applications/eager")
    assert (forked["shadow"], forked["parameters"]["out"]) == (True, "/data/eager")
    page.wait_for_selector("h1:text-is('eager')")


def test_a_rollback_shows_its_plan_in_numbers(page: Page, plane: Plane) -> None:
    plane.application("rolled")
    driver = StateDriver(plane, "rolled", tables=(DELAYS,))
    for epoch in range(1, 6):
        driver.epoch((DELAYS, [route("JFK", "LAX", epoch, 0.5), route("JFK", f"N{epoch}", 1, 1.0)]))
    plane.post("/v1/applications/rolled/stop")
    driver.driver.stop()
    show(page, "/console/applications/rolled/lineage?pick=2&zoom=2")
    page.click("button:text-is('Roll back to here')")
    page.locator("dialog .figures li", has_text="keys of delays").wait_for()
    figures = " ".join(page.locator("dialog .figures").inner_text().split())
    assert "3 epochs discarded" in figures
    assert "4 keys of delays" in figures  # a changed one, and three added ones
    add_axe(page)
    assert violations(page) == []
    button = page.locator("dialog button:text-is('Discard 3 epochs')")
    assert button.is_disabled()
    page.locator("dialog label", has_text="Message").locator("input").fill("wrong input")
    page.locator("dialog label", has_text="I have read the plan").locator("input").check()
    button.click()
    page.locator(".snapshot", has_text="left by a rollback").wait_for()
    assert plane.get("/v1/applications/rolled")["head"]["epoch"] == 2
    assert plane.get("/v1/operations")["items"][0]["kind"] == "rollback"


def test_actions_above_the_role_are_hidden(browser: Browser, plane: Plane) -> None:
    with opened(browser) as page:
        page.goto(f"{plane.settings.url}{LINEAGE}?pick=26")
        sign_in(page, plane.token("viewer"))
        page.wait_for_selector("#picked-title")
        buttons = page.locator("section.picked button, section.picked a.button").all_inner_texts()
        assert buttons == ["State as of epoch 26"]
