"""The versions page: an upgrade with upload, preflight, acceptance and trial."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import add_axe, opened, show, sign_in, violations
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

PIPELINE = """
from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import console, generator


class Parameters(BaseModel):
    factor: int = 1


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("prices")
    rows = pipeline.read("rows", generator.source({"n": "noise % 4", "amount": "noise % 900"}, rate=20))
    priced = rows.select("n", f"amount * {parameters.factor} AS amount")
    priced.key_by("n").aggregate("totals", revenue="sum(amount)").write("out", console.sink(rows=1))
    return pipeline
"""
PATH = "/console/applications/prices/versions"


@pytest.fixture(scope="module")
def prices(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the running application ``prices``, which has committed epochs."""
    file = tmp_path_factory.mktemp("prices") / "prices.py"
    file.write_text(PIPELINE)
    with plane.client() as client:
        client.applications.create("prices", client.artifacts.upload(file).sha256)
        application = client.application("prices")
        eventually(lambda: (head := application.get().head) is not None and head.epoch >= 3, 240)
        yield file
        client.operations.wait(client.applications.stop("prices"))
        client.applications.delete("prices")


def test_an_upgrade_is_checked_accepted_tried_out_and_made(page: Page, plane: ControlPlane, prices: Path) -> None:
    show(page, f"{PATH}/upgrade")
    added = prices.with_name("more.py")
    added.write_text(PIPELINE.replace('revenue="sum(amount)"', 'revenue="sum(amount)", most="max(amount)"'))
    page.set_input_files("input[type=file]", added)
    page.wait_for_url("**artifact=**")
    page.fill("textarea", '{"factor": 3}')
    page.click("button:text-is('Check')")
    page.wait_for_selector("text=The version cannot continue from the state", timeout=240_000)
    upgrade = page.locator("button.primary:text-is('Upgrade')")
    assert upgrade.is_disabled()
    report = page.locator("[aria-label='Parts of both versions']")
    assert "amount * 3" in report.inner_text() and "most bigint" in report.inner_text()
    for name in ("totals.revenue", "totals.most"):
        page.check(f"label:has-text('{name}') input")
        page.wait_for_selector("button:text-is('Check'):not([disabled])", timeout=240_000)
    page.wait_for_selector("text=The version can continue from the state")
    assert not upgrade.is_disabled()
    page.fill("input[type=number]", "2")
    page.click("button:text-is('Try out')")
    page.wait_for_selector("[aria-label='State after the trial']", timeout=400_000)
    state = page.locator("[aria-label='State after the trial'] tbody td").all_inner_texts()
    assert state[:3] == ["totals", "0 rows", "4 rows"]
    # The address shows the same report, from which an author can upgrade.
    page.reload()
    page.wait_for_selector("[aria-label='State after the trial']")
    upgrade.click()
    page.wait_for_selector("dialog >> text=1 state table kept, 0 added, 0 removed.")
    page.fill("dialog input", "three times")
    page.click("dialog button:text-is('Upgrade')")
    page.wait_for_selector("h2:text-is('Version 2')", timeout=240_000)
    with plane.client() as client:
        eventually(
            lambda: (
                [each.state for each in client.operations.list(limit=20) if each.kind == "upgrade"] == ["succeeded"]
            ),
            240,
        )
    page.wait_for_selector("[aria-label='Graph'] >> text=max(amount)")
    page.wait_for_selector("[aria-label='Parameters'] >> text=factor")
    with plane.client() as client:
        version = client.application("prices").versions.list()[0]
    assert (version.number, version.parameters, version.message) == (2, {"factor": 3}, "three times")
    assert version.failure is None and version.acceptance.partial == ("totals.most",)


def test_settings_are_set_with_problems_at_their_fields(page: Page, plane: ControlPlane, prices: Path) -> None:
    show(page, f"{PATH}/upgrade")
    with plane.client() as client:
        application = client.application("prices").get()
    before, factor = application.configuration, application.parameters.get("factor", 1)

    def set_to(name: str, value: str) -> None:
        page.click("button:text-is('Add a setting')")
        page.fill("label:has-text('Name of the setting') input", name)
        page.keyboard.press("Enter")
        page.fill(f".setting:has-text('{name}') input", value)
        page.keyboard.press("Enter")

    set_to("restart.max_restarts", "-1")
    page.wait_for_selector(".setting:has-text('restart.max_restarts') >> text=Now 5")
    page.click("button:text-is('Check')")
    page.wait_for_selector(".setting:has-text('restart.max_restarts') [role=alert] >> text=greater than or equal to 0")
    assert page.locator("main [role=alert]").count() == 1
    page.fill(".setting:has-text('restart.max_restarts') input", "7")
    page.locator(".setting input").blur()
    page.wait_for_selector(".setting [role=alert]", state="detached")
    set_to("epoch_interval_seconds", "0.5")
    page.fill("textarea", '{"factor": "many"}')
    page.locator("textarea").blur()
    page.click("button:text-is('Check')")
    page.wait_for_selector(".plain:has(textarea) [role=alert] >> text=factor", timeout=240_000)
    page.fill("textarea", json.dumps({"factor": factor}))
    page.locator("textarea").blur()
    page.locator("section:has(#upgrade-title) button:text-is('Copy as command')").click()
    commands = page.locator("dialog pre").all_inner_texts()
    options = "--set restart.max_restarts=7 --set epoch_interval_seconds=0.5"
    assert f"epochal upgrade prices -p factor={factor} {options}" in commands[0]
    page.keyboard.press("Escape")
    add_axe(page)
    assert violations(page) == []
    page.click("button:text-is('Check')")
    page.wait_for_selector("text=can continue from the state", timeout=240_000)
    page.click("button.primary:text-is('Upgrade')")
    page.wait_for_selector("dialog >> text=restart.max_restarts=7 epoch_interval_seconds=0.5")
    page.click("dialog button:text-is('Upgrade')")
    page.wait_for_url("**version=**")
    with plane.client() as client:
        versions = client.application("prices").versions
        eventually(lambda: versions.list()[0].configuration["restart"]["max_restarts"] == 7, 60)
        after = versions.list()[0].configuration
        assert after == {**before, "epoch_interval_seconds": 0.5, "restart": {**before["restart"], "max_restarts": 7}}
        eventually(lambda: not [each for each in client.operations.list(limit=20) if each.state == "running"], 120)


def test_wrong_code_shows_the_message_of_the_control_plane(page: Page, prices: Path) -> None:
    show(page, f"{PATH}/upgrade")
    wrong = prices.with_name("wrong.py")
    wrong.write_text("import nothing_of_this_name\n")
    page.set_input_files("input[type=file]", wrong)
    page.wait_for_url("**artifact=**")
    page.click("button:text-is('Check')")
    page.wait_for_selector("main [role=alert] >> text=nothing_of_this_name", timeout=240_000)
    page.fill("textarea", "[1]")
    page.locator("textarea").blur()
    page.wait_for_selector("main [role=alert] >> text=not a JSON object")
    assert page.locator("button:text-is('Check')").is_disabled()
    refused = prices.with_name("refused.txt")
    refused.write_text("text")
    page.set_input_files("input[type=file]", refused)
    page.wait_for_selector("main [role=alert] >> text=.py")


def test_operators_see_versions_without_the_upgrade(browser: Browser, plane: ControlPlane, prices: Path) -> None:
    with plane.client() as client:
        token = client.tokens.create("operates", "operator")
        assert token.token
        with opened(browser) as page:
            page.goto(f"{plane.url}{PATH}/upgrade")
            sign_in(page, token.token)
            page.wait_for_selector("#version-title")
            assert page.locator("text=Upgrade").count() == 0
        client.tokens.delete(token.id)
