"""The lineage page in a browser: branches, runs that open, search, and the difference between two snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import SCRIPT, add_axe, show, violations
from tests.console.lineage.conftest import LONG

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

LINEAGE = "/console/applications/flights/lineage"


def titles(page: Page) -> list[str]:
    """Titles of the drawn rows, from the newest one, with the application."""
    return [" ".join(text.split()) for text in page.locator(".lineage .snapshot .which").all_inner_texts()]


def test_a_fork_and_a_rollback_are_branches_of_one_drawing(page: Page) -> None:
    assert page.locator(".strands button.strand").all_inner_texts() == ["flights", "strict"]
    left = page.locator(".snapshot", has_text="left by a rollback")
    assert left.count() == 1 and "epoch 9" in left.inner_text()
    rolled = page.locator(".snapshot", has=page.locator(".mark.kind", has_text="rollback"), has_text="three wrong days")
    assert rolled.count() == 1
    fork = page.locator(".snapshot", has_text="only an hour counts")
    assert fork.count() == 1 and "strict" in fork.inner_text()
    heads = (
        page.locator(".snapshot", has=page.locator(".mark.head:text-is('head')")).locator(".which").all_inner_texts()
    )
    assert [" ".join(text.split()) for text in heads] == ["epoch 26 flights", "epoch 9 strict"]
    assert page.locator(".lane.left").count() > 0
    assert page.locator(".point.capsule").count() > 0


def test_the_drawing_has_the_applications_of_its_address(page: Page) -> None:
    page.select_option("select[aria-label='Show another application']", "orders")
    page.wait_for_url("**with=orders*")
    page.locator(".strands button.strand", has_text="orders").first.wait_for()
    assert any(title.startswith("epoch 3 orders") for title in titles(page))
    page.click("button:text-is('Hide orders')")
    page.wait_for_function("() => !location.search.includes('with')")
    page.locator(".which", has_text="orders").first.wait_for(state="detached")


def test_a_run_opens_and_folds_again(page: Page) -> None:
    run = page.locator(".snapshot.run", has_text="epochs 11 to 25")
    run.hover()
    run.locator("button", has_text="Open").click()
    page.locator(".which", has_text="epoch 24").first.wait_for()
    assert page.locator(".lineage .snapshot.run", has_text="epochs 11 to 25").count() == 0
    page.click("button:text-is('Fold again')")
    run.wait_for()


def test_a_folded_epoch_is_found_by_its_number(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("15")
    page.keyboard.press("Enter")
    page.wait_for_url("**around=15*")
    page.locator(".snapshot.current .which", has_text="epoch 15").wait_for()
    page.fill("input[type=search]", "before-strict")
    page.wait_for_selector("text=1 row found")
    page.fill("input[type=search]", "no such thing")
    page.wait_for_selector("text=nothing found")


def test_rows_are_reached_and_picked_by_keyboard(page: Page) -> None:
    page.focus(".lineage")
    page.keyboard.press("End")
    page.locator(".snapshot.current .which", has_text="epoch 1").wait_for()
    page.keyboard.press("Space")
    page.wait_for_url("**pick=1*")
    page.wait_for_selector("#picked-title:text-is('flights, epoch 1')")
    page.focus(".lineage")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.search.includes('pick')")
    page.keyboard.press("+")
    page.wait_for_url("**zoom=2*")
    page.locator(".which", has_text="epoch 24").first.wait_for()


def test_two_snapshots_differ_in_code_parameters_input_and_keys(page: Page) -> None:
    show(page, f"{LINEAGE}?pick=6,strict:9")
    page.wait_for_selector("#diff-title:has-text('flights epoch 6 to strict epoch 9')")
    page.wait_for_selector("[aria-label=Code] .added")
    code = page.locator("[aria-label=Code]").inner_text()
    assert "differs" in code and "version 1 of flights" in code and "version 1 of strict" in code
    assert page.locator("[aria-label=Code] .added code").all_inner_texts() == [
        '+ # {"sinks": {"out": "files:{out}"}, "warnings": ["other code"]}'
    ]
    parameters = page.locator("[aria-label=Parameters]").inner_text()
    assert "threshold" in parameters and "15" in parameters and "60" in parameters and SCRIPT in parameters
    entry = page.locator("[aria-label='Input of the second snapshot'] tbody tr").inner_text()
    assert '{"files":6}' in entry and '{"files":9}' in entry and "9 rows" in entry
    page.click(".diff .opening summary")
    row = page.locator("[aria-label='Differing rows of delays'] tbody tr").first
    row.wait_for()
    assert [*row.locator("del").all_inner_texts(), *row.locator("ins").all_inner_texts()] == ["6", "0.5", "62", "9.5"]
    page.click("button:text-is('Swap')")
    page.wait_for_selector("#diff-title:has-text('strict epoch 9 to flights epoch 6')")
    page.click("button:text-is('Pick others')")
    page.wait_for_function("() => !location.search.includes('pick')")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_long_and_right_to_left_messages_fit(page: Page, width: int, theme: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    add_axe(page)
    views = {"pick=6": "#picked-title", "pick=6,strict:9&with=orders": ".diff h3", "zoom=0": ".dense"}
    for query, selector in views.items():
        show(page, f"{LINEAGE}?{query}")
        page.wait_for_selector(selector)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, query
        assert violations(page) == [], query
    show(page, f"{LINEAGE}?pick=6")
    page.wait_for_selector(f"dd bdi >> text={LONG.strip()}")
