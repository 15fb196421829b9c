"""The queries page in a browser, at an application that runs standing queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.console.browsing import SCRIPT, add_axe, admin_token, opened, show, sign_in, violations
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

PIPELINE = f"""
from epochal import Pipeline
from epochal.connectors import generator

TIME = "timestamp_seconds(1700000000 + id DIV 10)"  # a window closes every two seconds
pipeline = Pipeline("asked")
rows = pipeline.read("rows", generator.source({{"n": "noise % 3", "at": TIME}}, rate=50))
events = rows.select(
    "CASE n WHEN 0 THEN '{SCRIPT}' WHEN 1 THEN 'phone' ELSE '' END AS device", "n", "at"
).with_watermark("at", "1 second")
events.standing_queries("queries", windows=("10 seconds", "1 day"), limit=10, groups=100, keep="1 day")
"""
PATH = "/console/applications/asked/queries"
COUNT = "SELECT device, count(*) AS n GROUP BY device WINDOW '10 seconds'"


@pytest.fixture(scope="module")
def plane(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("queries")
    file = folder / "asked.py"
    file.write_text(PIPELINE)
    with control_plane(folder) as plane, plane.client() as client:
        client.applications.create("asked", client.artifacts.upload(file).sha256)
        eventually(lambda: client.application("asked").get().head is not None, 120)
        yield plane


@pytest.fixture
def page(browser: Browser, plane: ControlPlane) -> Iterator[Page]:
    with opened(browser) as page:
        page.goto(f"{plane.url}{PATH}")
        sign_in(page, admin_token(plane))
        page.wait_for_selector("#queries-title")
        yield page


def ids(client: Client) -> list[int]:
    return [each.id for each in client.application("asked").queries.list()]


def test_a_query_is_added_answers_pauses_resumes_and_is_dropped(page: Page, plane: ControlPlane) -> None:
    page.wait_for_selector("text=No standing queries")
    page.click("button:text-is('Add a query')")
    page.fill("dialog textarea", COUNT.replace("device", "nation"))
    page.click("dialog button:text-is('Add')")
    page.wait_for_selector("dialog [role=alert] >> text=column 'nation' does not exist")
    page.fill("dialog textarea", COUNT)
    page.click("dialog button:text-is('Add')")
    page.wait_for_selector("h2:text-is('Query 1')", timeout=60_000)
    results = page.locator("[aria-label='Results of query 1'] tbody tr")
    results.first.wait_for(timeout=90_000)
    first = page.locator("[aria-label='Results of query 1'] tbody td").first.inner_text()
    # The next window appears without reloading, above the first one.
    page.wait_for_function(
        "first => document.querySelector(\"[aria-label='Results of query 1'] tbody td\").innerText !== first",
        arg=first,
        timeout=90_000,
    )
    assert {SCRIPT, "phone", "empty text"} <= set(
        page.locator("[aria-label='Results of query 1'] td.key").all_inner_texts()
    )
    page.click("button:text-is('Pause')")
    page.wait_for_selector("button:text-is('Resume')", timeout=60_000)
    page.click("button:text-is('Resume')")
    page.wait_for_selector("button:text-is('Pause')", timeout=60_000)
    with plane.client() as client:
        assert ids(client) == [1]
    page.click("button:text-is('Drop')")
    page.click("dialog button:text-is('Drop')")
    page.wait_for_selector("text=No standing queries", timeout=60_000)


def test_results_are_read_from_a_window_on(plane: ControlPlane) -> None:
    """``min_window_end`` through the API, the client and the command line."""
    with plane.client() as client:
        queries = client.application("asked").queries
        number = client.operations.wait(queries.add(COUNT)).result["query"]  # type: ignore[index]
        eventually(lambda: len({each.window_end for each in queries.results(number)}) >= 3, 120)
        found = list(queries.results(number))
        ends = sorted({each.window_end for each in found})
        later = list(queries.results(number, min_window_end=ends[1]))
        assert {each.window_end for each in later} >= set(ends[1:])
        assert ends[0] not in {each.window_end for each in later}
        assert [each for each in later if each.window_end <= ends[-1]] == [
            each for each in found if each.window_end >= ends[1]
        ]
        assert len(list(queries.results(number, limit=1, min_window_end=ends[1]))) == 1
        printed = plane.run(
            "query", "results", "asked", str(number), "--min-window-end", ends[1].isoformat(), columns=300
        )
        assert f"{ends[1]:%H:%M:%S}" in printed.stdout and f"– {ends[0]:%H:%M:%S}" not in printed.stdout
        client.operations.wait(queries.drop(number))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_and_the_page_fits(page: Page, plane: ControlPlane, theme: str) -> None:
    with plane.client() as client:
        queries = client.application("asked").queries
        if not ids(client):
            client.operations.wait(queries.add(COUNT))
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    page.set_viewport_size({"width": 390 if theme == "dark" else 1280, "height": 900})
    show(page, PATH)
    page.wait_for_selector(".flat tbody tr", timeout=90_000)
    add_axe(page)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_only_the_owner_sees_the_actions(browser: Browser, plane: ControlPlane) -> None:
    with plane.client() as client:
        token = client.tokens.create("ada", "author").token
    with opened(browser) as page:
        page.goto(f"{plane.url}{PATH}")
        sign_in(page, token)
        page.wait_for_selector("#query-title")
        assert page.locator("button:text-is('Drop')").count() == 0
        assert page.locator("button:text-is('Add a query')").count() == 1
