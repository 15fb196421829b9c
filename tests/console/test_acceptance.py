"""The first hour of a user in a browser: watch, survive a crash, look up, trace, fork and roll back."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane, process_id
from tests.console.browsing import committed, opened, show
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.long]

HOSTILE = "/console/applications/hostile"


def test_a_user_does_everything_in_the_browser(browser: Browser, plane: ControlPlane) -> None:
    with opened(browser) as page, plane.client() as client:
        application = client.application("hostile")
        page.goto(client.sessions.create_link(HOSTILE).url)
        page.wait_for_selector(".graph .node.stateful")
        watched = committed(client)
        page.wait_for_selector(f".epoch.committed >> text=/^{watched + 1}$/", timeout=60_000)

        attempt = application.executions.list()[0].attempts[-1]
        assert attempt.process is not None
        os.kill(process_id(attempt.process), signal.SIGKILL)
        killed = committed(client)
        eventually(lambda: committed(client) >= killed + 2, 120)
        page.wait_for_selector(f".epoch.committed >> text=/^{killed + 2}$/", timeout=60_000)
        page.click("nav.tabs >> text=History")
        page.wait_for_selector(f".history li >> text=attempt {attempt.number + 1}")

        page.click("nav.tabs >> text=State")
        page.click("text=right to left")
        page.wait_for_selector(".blame >> text=/epoch [0-9]+/")
        page.wait_for_selector(".blame >> text=admin")

        first = application.savepoints.get("first").epoch
        show(page, f"{HOSTILE}/lineage?pick={first}")
        page.click("button:text-is('Fork from here')")
        page.locator("dialog input").first.fill("branched")
        page.locator("dialog button.primary").click()
        page.wait_for_url("**/console/applications/branched")
        eventually(lambda: committed(client, "branched") > first + 2, 180)  # several epochs to discard
        page.wait_for_selector(f".epoch.committed >> text=/^{first + 1}$/", timeout=60_000)
        page.click("button:text-is('Stop')")
        page.locator("dialog button[type=submit]").click()
        page.wait_for_selector("header.title >> text=stopped", timeout=60_000)

        show(page, f"/console/applications/branched/lineage?pick={first + 1}&zoom=2")
        page.click("button:text-is('Roll back to here')")
        page.wait_for_selector("dialog .figures >> text=epochs discarded")
        page.locator("dialog label", has_text="I have read the plan").locator("input").check()
        page.locator("dialog button[type=submit]").click()
        page.locator(".snapshot", has_text="left by a rollback").first.wait_for()
        assert committed(client, "branched") == first + 1
        client.applications.delete("branched")
