"""Budgets of the console in a browser with 1,000 applications and no Spark job: first content, long tasks, memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import insert

from epochal.service.catalog.events import record
from epochal.service.catalog.models import Artifact
from epochal.service.domain.events import ControlEvent
from epochal.service.domain.settings import Settings
from tests.console.browsing import ATTEMPTS, LONGEST_TASK_MS, heap_bytes, longest_task, opened, show, sign_in, watch
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.test_many_applications import MADE, MOMENT, register

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

NAMES = [f"application-{number:04}" for number in range(1_000)]
FIRST_CONTENT_MS = 1_000
BATCH = 200
WARM_UP, MEASURED = 12_000, 12_000
"""Numbers of events: 12,000 are those of ten minutes at 20 events per second."""
GROWTH_BYTES = 2_000_000
"""Measured: 0.2 to 0.9 MB. Values of the 12,000 events would take more than 5 MB."""
FIRST_ROW = """new MutationObserver(() => {
    if (window.first === undefined && document.querySelector('.approw .name')) window.first = performance.now();
}).observe(document, { childList: true, subtree: true });"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    settings = Settings(data=tmp_path_factory.mktemp("budgets") / "data", port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        with control.database.writing() as session:
            code = {"sha256": "a" * 64, "filename": "flights.py", "bytes": 1, "uploaded_at": MOMENT, **MADE}
            session.execute(insert(Artifact), [code])
        register(control.database, NAMES)
        yield Plane(control, client, settings, supervisor, [])


@pytest.fixture
def page(browser: Browser, crowded: Plane) -> Iterator[Page]:
    with opened(browser) as page:
        page.goto(f"{crowded.settings.url}/console/applications")
        sign_in(page, crowded.admin_token)
        page.locator(".approw .name").first.wait_for(timeout=60_000)
        page.locator("text=1,000 applications").first.wait_for()
        yield page


class Epochs:
    """Writes events of epochs, as drivers of the applications would cause them."""

    def __init__(self, plane: Plane, page: Page) -> None:
        self._plane = plane
        self._page = page
        self.written = 0

    def write(self, events: int, shown: int = 12) -> None:
        """Write events of the first ``shown`` applications, in batches that the page has received before the next."""
        for _ in range(events // BATCH):
            with self._plane.control.database.writing() as session:
                for _ in range(BATCH):
                    self.written += 1
                    record(session, self._event(NAMES[self.written % shown], 10 + self.written // shown))
            self._page.wait_for_timeout(50)

    def received(self) -> None:
        """Wait until the page has the last event."""
        show(self._page, "/console/events")
        last = 10 + self.written // 12
        self._page.locator("ol.events", has_text=f"epoch {last} committed").first.wait_for(timeout=120_000)
        show(self._page, "/console/applications")
        self._page.locator(".approw .name").first.wait_for()

    def _event(self, name: str, epoch: int) -> ControlEvent:
        at = datetime.now(UTC)
        data = {"application": name, "branch": f"{name}-1", "epoch": epoch, "state": "committed", "at": at.isoformat()}
        more = {"rows_in": 100, "rows_out": 10, "started_at": at.isoformat(), "committed_at": at.isoformat()}
        return ControlEvent("epoch", name, data | more, at)


def test_the_first_content_is_shown_within_a_second(page: Page) -> None:
    """The time from the start of the navigation to the first application of 1,000, in a session."""
    page.add_init_script(FIRST_ROW)
    times: list[float] = []
    while len(times) < ATTEMPTS and min(times, default=9e9) > FIRST_CONTENT_MS:
        page.reload()
        page.locator(".approw .name").first.wait_for(timeout=60_000)
        times.append(page.evaluate("() => window.first"))
    assert min(times) <= FIRST_CONTENT_MS, times


def test_no_task_is_long_with_a_thousand_applications(page: Page, crowded: Plane) -> None:
    """Showing the page, scrolling to its end, filtering, and 2,000 events."""
    longest: dict[str, list[float]] = {"show": [], "scroll": [], "filter": [], "live": []}
    events = Epochs(crowded, page)
    for _ in range(ATTEMPTS):
        watch(page)
        show(page, "/console/events")
        page.locator("main select").first.wait_for()
        show(page, "/console/applications")
        page.locator("text=1,000 applications").first.wait_for()
        longest["show"].append(longest_task(page))
        watch(page)
        for _ in range(50):
            page.evaluate("() => document.querySelector('.virtual').scrollBy(0, 1400)")
            page.wait_for_timeout(20)
        page.locator("text=application-0999").first.wait_for()
        longest["scroll"].append(longest_task(page))
        watch(page)
        page.keyboard.press("/")
        page.keyboard.type("application-07", delay=20)
        page.locator("text=application-0700").first.wait_for()
        page.fill("input[type=search]", "")
        page.locator("text=application-0000").first.wait_for()
        longest["filter"].append(longest_task(page))
        watch(page)
        events.write(2_000)
        longest["live"].append(longest_task(page))
        if all(min(times) <= LONGEST_TASK_MS for times in longest.values()):
            break
    assert all(min(times) <= LONGEST_TASK_MS for times in longest.values()), longest


def test_memory_stays_flat_while_events_arrive(page: Page, crowded: Plane) -> None:
    """The heap after 12,000 and after 24,000 events of epochs, each after forced collections.

    The page keeps the last 500 events, and 30 epochs for each application that was shown: everything else is freed. The
    events are those of ten minutes in less than one. Handles of elements would keep these, so the tests of this module
    wait with locators."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    events = Epochs(crowded, page)
    events.write(WARM_UP)
    events.received()
    before = heap_bytes(session)
    events.write(MEASURED)
    events.received()
    growth = heap_bytes(session) - before
    assert growth <= GROWTH_BYTES, f"{growth:,} bytes more than {before:,}"
