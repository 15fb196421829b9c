"""Epochs with their steps, logs, and the life cycle of an application, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import committed, show
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_an_epoch_opens_to_its_steps_and_its_log(page: Page, plane: ControlPlane) -> None:
    with plane.client() as client:
        application = client.application("hostile")
        eventually(lambda: "E6" in (((durations := application.epochs.get(1).durations) and durations.steps) or {}), 60)
        branch = application.epochs.get(1).branch
    show(page, "/console/applications/hostile?epoch=1")
    page.wait_for_selector(".steps .track i")
    steps = page.locator(".steps li b").all_inner_texts()
    assert [step for step in steps if step.startswith("E")] == ["E1", "E2", "E3", "E4", "E5", "E6", "E7"]
    assert {"T1", "T2", "T3"} <= set(steps)
    assert page.locator(".steps li.done .number").first.inner_text().endswith("s")
    page.click("text=Log of epoch 1, attempt 1")
    page.wait_for_url("**/logs?attempt=1&**epoch=1")
    page.wait_for_selector(".logline")
    lines = page.locator(".logline").all_inner_texts()
    assert any("E4 prepare" in line for line in lines)
    named = [line for line in lines if f"epoch {branch}/" in line]
    assert named and not [line for line in named if f"{branch}/1 " not in line and f"{branch}/1," not in line]


def test_a_log_grows_pauses_and_filters_by_its_address(page: Page, plane: ControlPlane) -> None:
    show(page, "/console/applications/hostile/logs?text=E6+publish")
    page.wait_for_selector(".logline mark:text-is('E6 publish')")
    with plane.client() as client:
        before = committed(client)
    page.wait_for_selector(f".logline >> text=/\\/{before + 1} is committed/", timeout=60_000)
    assert all("E6 publish" in line for line in page.locator(".logline").all_inner_texts())
    page.click("button:text-is('Pause')")
    held = page.locator(".logline").last.inner_text()
    page.wait_for_selector("text=since the pause", timeout=60_000)
    assert page.locator(".logline").last.inner_text() == held
    page.click("button:text-is('Resume')")
    page.wait_for_function("held => [...document.querySelectorAll('.logline')].at(-1)?.innerText !== held", arg=held)
    page.select_option("label:has-text('Level') select", "error")
    page.wait_for_url("**level=error**")
    page.wait_for_selector("text=None of the last")
    page.fill("input[type=search]", "")
    page.select_option("label:has-text('Level') select", "")
    page.wait_for_function("!location.search.includes('text')")
    page.wait_for_selector(".logline >> text=E1 open")


def test_a_log_stays_where_it_was_scrolled_to(page: Page, plane: ControlPlane) -> None:
    show(page, "/console/applications/hostile/logs")
    page.wait_for_selector(".logline >> text=E6 publish")
    page.evaluate("document.querySelector('.logbox').scrollTop = 40")
    page.wait_for_selector("button:text-is('Follow the end')")
    lines = int(page.inner_text(".logfacts span").split()[0].replace(",", ""))
    page.wait_for_function(
        "before => parseInt(document.querySelector('.logfacts span').innerText.replace(',', '')) > before + 3",
        arg=lines,
    )
    assert page.evaluate("document.querySelector('.logbox').scrollTop") == 40
    page.click("button:text-is('Follow the end')")
    page.wait_for_function(
        "(box => box.scrollTop + box.clientHeight >= box.scrollHeight - 20)(document.querySelector('.logbox'))"
    )


def test_the_log_of_an_unknown_attempt_says_so(page: Page) -> None:
    show(page, "/console/applications/hostile/logs?attempt=99")
    page.wait_for_selector("[role=alert] >> text=has no attempt 99")
