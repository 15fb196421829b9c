"""A browser, a control plane with a running application that has hostile names, and a page after sign-in.

The control planes are started once for all modules that use them: ``tests/kit/workers.py`` runs these on one worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.console.browsing import PIPELINE, SCRIPT, admin_token, browser_path, chromium, committed, opened, sign_in
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def installed_browser() -> str:
    return browser_path()


@pytest.fixture(scope="module")
def browser(installed_browser: str) -> Iterator[Browser]:
    """A browser for each module: its driver has an event loop in the main thread, where later modules of the worker
    run their own."""
    with chromium(installed_browser) as started:
        yield started


@pytest.fixture(scope="session")
def plane(installed_browser: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the running application ``hostile``, which has committed epochs, and a savepoint whose message is markup.

    Tests leave the application running, and the control plane as they found it."""
    folder = tmp_path_factory.mktemp("console")
    file = folder / "hostile.py"
    file.write_text(PIPELINE)
    with control_plane(folder) as plane, plane.client() as client:
        client.applications.create("hostile", client.artifacts.upload(file).sha256)
        eventually(lambda: committed(client) >= 2, 120)
        application = client.application("hostile")
        client.operations.wait(application.savepoints.create("first", f"{SCRIPT} <b>message</b>"))
        yield plane


@pytest.fixture
def page(browser: Browser, plane: ControlPlane) -> Iterator[Page]:
    """A page after sign-in. The test fails if it raises an error, breaks its policy or runs a name as a script."""
    with opened(browser) as page:
        page.goto(f"{plane.url}/console/applications")
        sign_in(page, admin_token(plane))
        page.wait_for_selector("text=hostile")
        yield page


@pytest.fixture(scope="session")
def new_plane(installed_browser: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without applications."""
    with control_plane(tmp_path_factory.mktemp("new"), {"EPOCHAL_WARM_DRIVERS": "0"}) as plane:
        yield plane


@pytest.fixture
def signed_out(browser: Browser) -> Iterator[Page]:
    """A page without a session."""
    with opened(browser) as page:
        yield page
