"""The graph of the overview: live figures, and one node with its code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import PIPELINE, committed, opened, show, sign_in
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

OVERVIEW = "/console/applications/hostile"
WIDE = Path(__file__).parents[2] / "examples" / "nexmark" / "q7.py"


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(PIPELINE.split("\n"), 1) if text in line)


def test_figures_of_the_running_application_appear(page: Page) -> None:
    show(page, OVERVIEW)
    for part, figure in (
        (".node.source", "/[0-9] rows\\/s/"),
        (".node.stateful", "/[0-9] % busy/"),
        (".node.stateful", "/^4 rows, [0-9.]+ (B|KiB) files$/"),
        (".node.sink", "/[0-9] rows\\/s/"),
        (".edge", "/[0-9] rows\\/s/"),
    ):
        page.wait_for_selector(f".graph {part} text >> text={figure}", timeout=60_000)
    assert page.locator(".graph .node.hot").count() == 0, "one operator alone is not the slowest"


def test_an_address_shows_a_node_with_its_code(page: Page) -> None:
    show(page, f"{OVERVIEW}?node=counts")
    defining = page.locator(".codeline.defining")
    defining.wait_for()
    assert defining.locator("code").inner_text() == PIPELINE.split("\n")[line_of('aggregate("counts"') - 1]
    assert defining.locator(".number").inner_text() == str(line_of('aggregate("counts"'))
    assert page.locator(".node-panel h3").inner_text() == "aggregate counts"
    assert page.evaluate("document.activeElement.closest('.node-panel')") is None, "an address does not move the focus"
    page.click(".node-panel a:text-is('State counts')")
    page.wait_for_url("**/applications/hostile/state?table=counts")


def test_a_node_opens_and_closes_by_keyboard(page: Page) -> None:
    show(page, OVERVIEW)
    page.locator(".graph .node.sink").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**?node=out")
    page.locator(".codeline.defining").wait_for()
    assert page.locator(".codeline.defining .number").inner_text() == str(line_of('.write("out"'))
    assert page.evaluate("document.activeElement.textContent") == "sink out"
    page.keyboard.press("Escape")
    page.wait_for_selector(".node-panel", state="detached")
    assert "node=" not in page.url
    assert page.evaluate("document.activeElement.textContent").startswith("sink out")


def test_a_viewer_sees_no_code(browser: Browser, plane: ControlPlane) -> None:
    with plane.client() as client:
        token = client.tokens.create("console-viewer", "viewer")
    try:
        with opened(browser) as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{plane.url}{OVERVIEW}?node=counts")
            sign_in(page, token.token)
            page.wait_for_selector(".node-panel h3")
            page.wait_for_selector(".node-panel a:text-is('State counts')")
            assert page.locator(".codeview").count() == 0
            assert page.locator(".node-panel h4").count() == 0
            assert not any("/source" in url for url in asked)
    finally:
        with plane.client() as client:
            client.tokens.delete(token.id)


def test_the_difference_of_two_snapshots_shows_changed_lines(page: Page, plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "changed.py"
    file.write_text(PIPELINE.replace("rate=20", "rate=10"))
    with plane.client() as client:
        name, epoch = "hostile-changed", committed(client)
        fork = client.applications.fork("hostile", name, artifact=client.artifacts.upload(file).sha256, shadow=True)
        assert fork.name == name
        try:
            eventually(lambda: (head := client.application(name).get().head) is not None and head.epoch > epoch, 180)
            head = client.application(name).get().head
            assert head is not None
            show(page, f"/console/applications/hostile/lineage?with={name}&pick={epoch},{name}:{head.epoch}")
            page.wait_for_selector(".diff .code .removed")
            assert page.locator(".diff .code .removed code").inner_text().endswith("rate=20))")
            assert page.locator(".diff .code .added code").inner_text().endswith("rate=10))")
        finally:
            client.operations.wait(client.applications.stop(name))
            client.applications.delete(name)


@pytest.mark.long
def test_a_wide_graph_fits_or_is_scrolled_at_a_readable_size(page: Page, plane: ControlPlane) -> None:
    with plane.client() as client:
        code = client.artifacts.upload(WIDE).sha256
        client.applications.create("wide", code, start=False)
    show(page, "/console/applications/wide")
    sizes = "(svg => [svg.getBoundingClientRect().width / svg.viewBox.baseVal.width, svg.parentElement.scrollWidth, "
    sizes += "svg.parentElement.clientWidth])(document.querySelector('.graph svg'))"
    page.wait_for_selector(".graph .node.sink")
    scale, content, width = page.evaluate(sizes)
    assert 0.66 <= scale < 1 and content <= width
    page.set_viewport_size({"width": 1000, "height": 900})
    page.wait_for_function("document.querySelector('.graph').clientWidth < 1000")
    scale, content, width = page.evaluate(sizes)
    assert 0.65 < scale < 0.67 and content > width
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000
    with plane.client() as client:
        client.applications.delete("wide")
