"""A control plane with hostile state, and the state page of its application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import opened, sign_in
from tests.console.state.hostile_state import hostile_state
from tests.console.state.steps import STATE
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
def state(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plane, StateDriver]]:
    with hostile_state(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="module")
def plane(state: tuple[Plane, StateDriver]) -> Plane:
    return state[0]


@pytest.fixture
def page(browser: Browser, plane: Plane) -> Iterator[Page]:
    """The state page after sign-in. The test fails if it raises an error, breaks its policy or runs a name."""
    with opened(browser) as page:
        page.goto(f"{plane.settings.url}{STATE}")
        sign_in(page, plane.admin_token)
        page.wait_for_selector(".state-page")
        page.evaluate(WATCH)
        yield page
