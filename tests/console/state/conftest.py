"""A control plane with hostile state, and the state page of its application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.state.hostile_state import hostile_state
from tests.console.state.steps import STATE
from tests.console.test_pages import browser  # noqa: F401
from tests.service.lookups import StateDriver

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.service.conftest import Plane

WATCH = """() => {
    window.longest = 0;
    const observer = new PerformanceObserver(list => {
        for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    });
    observer.observe({ entryTypes: ["longtask"] });
}"""


@pytest.fixture(scope="module")
def state(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plane, StateDriver]]:  # noqa: F811
    with hostile_state(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="module")
def plane(state: tuple[Plane, StateDriver]) -> Plane:
    return state[0]


@pytest.fixture
def page(browser: Browser, plane: Plane) -> Iterator[Page]:  # noqa: F811
    """The state page after sign-in. The test fails if it raises an error, breaks its policy or runs a name."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    page.goto(f"{plane.settings.url}{STATE}")
    page.fill("input[name=token]", plane.admin_token)
    page.keyboard.press("Enter")
    page.wait_for_selector(".state-page")
    page.evaluate(WATCH)
    yield page
    assert wrong == []
    assert page.evaluate("window.wrong") is None
    context.close()
