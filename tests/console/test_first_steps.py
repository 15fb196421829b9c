"""The commands that the console shows at a control plane without applications fill its page."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import COMMAND, ControlPlane
from tests.console.browsing import add_axe, committed, opened, sign_in, violations
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_viewer_sees_no_commands(browser: Browser, new_plane: ControlPlane) -> None:
    with new_plane.client() as client, opened(browser) as page:
        page.goto(f"{new_plane.url}/console/")
        sign_in(page, client.tokens.create("watcher", "viewer").token)
        page.wait_for_selector("text=No applications yet")
        assert page.locator(".copyable").count() == 0


def test_the_commands_fill_the_page(browser: Browser, new_plane: ControlPlane, tmp_path: Path) -> None:
    """They are copied by the buttons and run in a terminal of the same person, in a folder without files."""
    environment = {name: value for name, value in new_plane.environment.items() if name != "EPOCHAL_URL"}
    environment["PATH"] = f"{COMMAND.parent}{os.pathsep}{environment['PATH']}"

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with new_plane.client() as client, opened(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(client.sessions.create_link().url)
        page.wait_for_selector("text=No applications yet")
        add_axe(page)
        assert violations(page) == []
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        commands = []
        for each in page.locator(".first .copyable").all():
            each.locator("button").click()
            commands.append(page.evaluate("navigator.clipboard.readText()"))
            assert commands[-1] == each.locator("pre").inner_text()
        write, submit, get = commands
        assert new_plane.url in submit and new_plane.url in get
        run(write)
        assert [file.name for file in tmp_path.iterdir()] == ["orders.py"]
        run(submit)
        page.wait_for_selector(".approw .name a:text-is('orders')")  # without a reload
        # The first epochs have few rows, perhaps none of the key that the command reads.
        eventually(lambda: committed(client, "orders") >= 5, 120)
        assert "total" in run(get)
