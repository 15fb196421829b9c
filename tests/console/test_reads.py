"""Each view reads its data once when a page is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import admin_token, opened, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

OF_AN_APPLICATION = (
    "",
    "/state",
    "/queries",
    "/versions",
    "/retention",
    "/work",
    "/history",
    "/logs",
    "/events",
)
OF_A_PROJECT = ("/applications", "/operations", "/events", "/audit", "/access")
SETTLED_MS = 2500
"""More than the second after which a view reads again."""


@pytest.fixture(scope="module")
def quiet(plane: ControlPlane) -> Iterator[str]:
    """A fork that is not started: no event concerns it. So is ``empty``, which has no running relative either."""
    with plane.client() as client:
        code = client.applications.get("hostile").artifact
        client.applications.create("empty", code, start=False)
        yield client.applications.fork("hostile", "quiet", start=False).name
        client.applications.delete("quiet")
        client.applications.delete("empty")


def reads(page: Page, url: str) -> dict[str, int]:
    """Requests of a page by path and query, while it is loaded."""
    sent: list[str] = []

    def note(request: object) -> None:
        path = urlsplit(request.url)  # type: ignore[attr-defined]
        if path.path.startswith("/v1/"):
            sent.append(f"{path.path}?{path.query}")

    page.on("request", note)
    page.goto(url)
    page.wait_for_selector(".live.live")
    page.wait_for_timeout(SETTLED_MS)
    page.remove_listener("request", note)
    return dict(Counter(sent))


def repeated(page: Page, url: str) -> dict[str, int]:
    found = reads(page, url)
    assert len(found) >= 3, found  # the session, the stream and the data of the view
    return {path: number for path, number in found.items() if number > 1}


def test_views_of_an_application_are_read_once(page: Page, plane: ControlPlane, quiet: str) -> None:
    found = {view: repeated(page, f"{plane.url}/console/applications/{quiet}{view}") for view in OF_AN_APPLICATION}
    found["/lineage"] = repeated(page, f"{plane.url}/console/applications/empty/lineage")
    assert found == {view: {} for view in found}


def test_views_of_a_project_are_read_once(browser: Browser, new_plane: ControlPlane) -> None:
    with opened(browser) as page:
        page.goto(f"{new_plane.url}/console/")
        sign_in(page, admin_token(new_plane))
        found = {view: repeated(page, f"{new_plane.url}/console{view}") for view in OF_A_PROJECT}
    assert found == {view: {} for view in found}
