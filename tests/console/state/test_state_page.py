"""The state page in a browser: hostile keys, large values, wide and long tables.

The control plane is real; the state is written as the engine writes it, without Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import add_axe, violations
from tests.console.state.hostile_state import BIG, NAMES, PLAIN, RIGHT_TO_LEFT, SCRIPT
from tests.console.state.steps import TYPED_KEY, show, values_shown
from tests.service.lookups import StateDriver

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.service.conftest import Plane

pytestmark = [pytest.mark.slow, pytest.mark.long]

LONGEST_TASK_MS = 200


def test_every_key_of_the_list_opens(page: Page) -> None:
    """The link of a row has the key that the API finds, also for null, empty texts and texts with separators."""
    show(page, "names", more="&epoch=3")
    page.wait_for_selector(f"text=/^{len(NAMES)} rows as of/")
    for index in range(len(NAMES)):
        link = page.locator(".grid tbody tr a").nth(index)
        name = link.inner_text()
        link.click()
        page.wait_for_function(
            "() => document.querySelector('.grid tr.selected a') && document.querySelector('.key-view dl.value')"
        )
        assert page.locator(".grid tr.selected a").inner_text() == name
        assert len(values_shown(page)) == 2


def test_a_key_is_typed_with_an_empty_text_null_and_a_line_break(page: Page) -> None:
    show(page, "pairs")
    choices = page.locator(".keyfield select")
    choices.nth(0).select_option("empty")
    page.fill("input[aria-label=number]", "-5")
    page.fill("input[aria-label=flag]", "false")
    choices.nth(3).select_option("null")
    page.click("button:text-is('Look up')")
    page.wait_for_selector(".key-view dl.value")
    assert values_shown(page) == {"n": str(BIG + 4)}
    show(page, "names")
    page.locator("textarea").focus()
    page.keyboard.type("line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("break")
    page.locator("textarea").fill("line\nbreak\ttab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".key-view dl.value")
    assert values_shown(page)["note"] == "line\nbreak\ttab"


def test_values_of_all_types_are_exact(page: Page) -> None:
    show(page, "typed", TYPED_KEY)
    shown = values_shown(page)
    assert shown["big"] == str(BIG + 4)
    assert shown["exact"] == "12345678901238.5678"
    assert shown["f"] == "0.30000000000000004"
    assert shown["raw"] == "AP8=" and "2 bytes" in page.locator(".key-view dl.value").inner_text()
    assert json.loads(shown["tags"]) == ["a", None, SCRIPT]
    assert json.loads(shown["seen"]) == {"k": BIG}
    assert shown["nothing"] == "null"


def test_what_changed_a_key_leads_to_its_pages(page: Page) -> None:
    show(page, "names", [RIGHT_TO_LEFT], "&epoch=2")
    blame = page.locator(".blame")
    assert blame.locator("dt").all_inner_texts() == ["Epoch", "Input", "Code", "Person"]
    links = [link.get_attribute("href") for link in blame.locator("a").all()]
    assert links[0] == "/console/applications/flights?epoch=2"
    assert links[1] == "/console/applications/flights?node=flights"
    assert links[2] == "/console/applications/flights?node=names"
    blame.locator("text=deployed version 1").wait_for()
    assert "admin" in blame.inner_text()
    blame.locator("a").first.click()
    page.wait_for_url("**/applications/flights?epoch=2")


def test_a_deleted_key_has_its_history(page: Page) -> None:
    show(page, "names", ["a,b"])
    page.wait_for_selector("text=The key has no row now")
    assert "deleted" in page.locator("[aria-label='Changes of the key'] tbody tr").first.inner_text()
    show(page, "names", ["a,b"], "&epoch=4")
    page.wait_for_selector(".key-view dl.value")


def test_the_slider_keeps_the_position_of_the_page(page: Page) -> None:
    show(page, "names", [SCRIPT])
    page.wait_for_selector("[aria-label='Changes of the key'] tbody tr")
    page.set_viewport_size({"width": 1280, "height": 500})
    slider = page.locator(".slider input[type=range]")
    slider.focus()
    page.evaluate("scrollTo(0, document.querySelector('.slider').getBoundingClientRect().top + scrollY - 100)")
    before = page.evaluate("scrollY")
    page.evaluate("window.moved = 0; addEventListener('scroll', () => { window.moved += 1 })")
    page.wait_for_timeout(100)
    page.evaluate("window.moved = 0")
    for epoch in (4, 3, 2, 1):
        page.keyboard.press("ArrowLeft")
        page.wait_for_url(f"**epoch={epoch}*")
        page.wait_for_function(
            "length => document.querySelector('.key-view dl.value dd bdi')?.textContent === length",
            arg=str(epoch * 1000 + len(SCRIPT)),
        )
        assert page.evaluate("scrollY") == before
    assert page.evaluate("window.moved") == 0
    assert page.evaluate("document.activeElement.type") == "range"


def test_entries_of_a_map_lead_to_rows(page: Page) -> None:
    show(page, "visits.places", ["N1"])
    page.wait_for_selector("text=4 entries")
    page.locator(f"[aria-label='Entries of the key'] a:has-text('{SCRIPT}')").click()
    page.wait_for_selector(".key-view dl.value")
    assert values_shown(page) == {"late": "1"}
    page.click("button:text-is('All entries of the key')")
    page.wait_for_selector("text=4 entries")
    show(page, "sliding", ["Oslo"])
    page.wait_for_selector("th bdi:text-is('window_start')")


def longest_task(page: Page) -> float:
    page.wait_for_timeout(300)
    return float(page.evaluate("window.longest"))


def test_a_value_of_a_megabyte_is_clipped_and_downloaded(page: Page, tmp_path: Path) -> None:
    show(page, "large", [3])
    page.wait_for_selector("text=200 characters of 1,000,000 characters")
    page.click("button:text-is('Show more')")
    page.wait_for_selector("text=20,000 characters of 1,000,000 characters")
    with page.expect_download() as download:
        page.click("button:text-is('Download')")
    assert download.value.suggested_filename == "text.txt"
    download.value.save_as(tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "d" * 1_000_000
    assert page.evaluate("document.body.textContent.length") < 100_000
    assert longest_task(page) < LONGEST_TASK_MS


def test_ten_thousand_columns_are_filtered(page: Page, plane: Plane) -> None:
    show(page, "wide", [3])
    page.wait_for_selector(".columnlist")
    assert page.locator(".grid th").count() <= 45
    assert page.evaluate("document.querySelectorAll('*').length") < 4_000
    page.fill("input[placeholder='Part of a name']", "column_09876")
    page.wait_for_selector("text=1 of 1 matching column")
    assert values_shown(page) == {"column_09876": "9876"}
    assert "columns=column_09876" in page.url
    assert page.locator("[aria-label='Changes of the key'] tbody tr td").last.inner_text() == "9876"
    assert longest_task(page) < LONGEST_TASK_MS


def test_a_hundred_thousand_keys_scroll_in_both_directions(page: Page) -> None:
    show(page, "many")
    page.wait_for_selector(".grid tbody tr a")
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url) if "/scan" in request.url else None)
    for _ in range(40):
        page.evaluate("() => { const box = document.querySelector('.grid'); box.scrollTop = box.scrollHeight }")
        page.wait_for_timeout(60)
    rows = page.evaluate("[...document.querySelectorAll('.grid tbody a')].map(link => Number(link.textContent))")
    assert len(seen) > 5 and rows == list(range(rows[0], rows[0] + len(rows))) and rows[0] > 1_000
    assert page.locator(".grid tbody tr").count() < 80
    page.evaluate("() => { document.querySelector('.grid').scrollTop = 0 }")
    page.wait_for_selector(".grid tbody tr a >> text=/^0$/")
    # The first page is read again if it was dropped; the rows are the same.
    assert page.locator(".grid tbody a").all_inner_texts()[:5] == ["0", "1", "2", "3", "4"]
    page.fill("[data-search]", "99999")
    page.wait_for_selector(".grid tbody tr a >> text=/^99999$/")
    assert longest_task(page) < LONGEST_TASK_MS


def test_the_strip_of_key_groups_is_read_by_keyboard(page: Page, plane: Plane) -> None:
    show(page, "many")
    strip = page.locator(".strip")
    strip.wait_for()
    sizes = plane.get("/v1/applications/flights/snapshots/5/key-groups/many")
    ordered = sorted(sizes["rows"])
    ratio = ordered[-1] / ((ordered[63] + ordered[64]) / 2)
    greatest = sizes["rows"].index(ordered[-1])
    page.wait_for_selector(
        f"text=The greatest key group, {greatest}, has {ordered[-1]} rows: {ratio:.1f} times the median"
    )
    assert strip.locator("rect").count() == 128
    strip.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".strip[aria-valuenow='1']")
    assert str(strip.get_attribute("aria-valuetext")).startswith(f"Key group 1: {sizes['rows'][1]} rows, ")
    assert str(strip.get_attribute("aria-valuetext")).endswith("subtask 1 of many")
    page.click("text=Key groups as a table")
    assert page.locator("[aria-label='Sizes of key groups'] tbody tr").count() == 128
    assert page.locator("[aria-label='Sizes of key groups'] tbody tr").first.inner_text().split()[0] == str(greatest)


VIEWS = {
    "names": ("names", [SCRIPT], ""),
    "types": ("typed", TYPED_KEY, "&epoch=2"),
    "map": ("visits.places", ["N1"], ""),
    "wide": ("wide", [3], ""),
    "large": ("large", [3], ""),
    "deleted": ("names", ["a,b"], ""),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_and_the_page_fits(page: Page, theme: str) -> None:
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    add_axe(page)
    page.set_viewport_size({"width": 390 if theme == "dark" else 1280, "height": 900})
    for name, (table, key, more) in VIEWS.items():
        show(page, table, key, more)
        page.wait_for_selector(".strip")
        assert violations(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_a_commit_updates_the_value_without_reloading(page: Page, state: tuple[Plane, StateDriver]) -> None:
    """Last: it adds an epoch."""
    plane, driver = state
    show(page, "names", [SCRIPT])
    page.wait_for_selector("dl.value")
    driver.epoch(
        (PLAIN, [{"name": SCRIPT, "length": 77, "note": None}]),
        artifact=plane.get("/v1/applications/flights")["artifact"],
    )
    page.wait_for_selector("dl.value dd >> text=/^77$/", timeout=20_000)
    page.wait_for_selector("[aria-label='Changes of the key'] tbody tr >> text=epoch 6")
