"""The lineage page at 100,000 epochs, which are folded into few rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import insert, select

from epochal.service.catalog.models import Branch, Epoch
from epochal.service.domain.settings import Settings
from tests.console.browsing import ATTEMPTS, LONGEST_TASK_MS, longest_task, opened, show, sign_in, watch
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

EPOCHS = 100_000
SCROLLED_TO = 95_000
MOST_SCROLLS = 400
LINEAGE = "/console/applications/flights/lineage"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """The catalog of an application with 100,000 committed epochs, a message on each 10,000th. No manifest exists."""
    settings = Settings(data=tmp_path_factory.mktemp("long") / "data", port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        plane = Plane(control, client, settings, supervisor, [])
        plane.application()
        driver = plane.driver()
        driver.running()
        driver.epoch()
        _fill(plane)
        plane.post("/v1/applications/flights/stop")
        driver.stop()
        for epoch in range(10_000, EPOCHS, 10_000):
            plane.post(f"/v1/applications/flights/snapshots/{epoch}/message", 201, message=f"epoch number {epoch}")
        yield plane


def _fill(plane: Plane) -> None:
    with plane.control.database.writing() as session:
        first = session.execute(select(Epoch)).scalar_one()
        row = {column.name: getattr(first, column.name) for column in Epoch.__table__.columns}
        begin = datetime.now(UTC) - timedelta(seconds=EPOCHS)
        for start in range(2, EPOCHS + 1, 10_000):
            rows = []
            for epoch in range(start, min(start + 10_000, EPOCHS + 1)):
                at = begin + timedelta(seconds=epoch)
                times = {"started_at": at, "prepared_at": at, "committed_at": at}
                rows.append({**row, **times, "epoch": epoch, "parent_branch": row["branch"], "parent_epoch": epoch - 1})
            session.execute(insert(Epoch), rows)
        branch = session.get(Branch, row["branch"])
        assert branch is not None
        branch.head_epoch = EPOCHS


@pytest.fixture
def page(browser: Browser, many: Plane) -> Iterator[Page]:
    with opened(browser) as page:
        page.goto(f"{many.settings.url}{LINEAGE}")
        sign_in(page, many.admin_token)
        page.wait_for_selector(".lineage .snapshot", timeout=60_000)
        yield page


def test_a_hundred_thousand_epochs_are_folded_and_open(page: Page) -> None:
    rows = page.locator(".lineage .snapshot")
    assert rows.count() < 40
    page.locator(".which", has_text="epochs 90,001 to 99,999").wait_for()
    run = page.locator(".snapshot.run", has_text="epochs 50,001 to 59,999")
    run.hover()
    run.locator("button", has_text="Open").click()
    page.locator(".which", has_text="epoch 59,998").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("12,345")
    page.keyboard.press("Enter")
    page.locator(".snapshot.current .which", has_text="epoch 12,345").wait_for()


def _last(page: Page) -> int:
    """The lowest row that is drawn."""
    return int(
        page.locator(".lineage .which").last.inner_text().splitlines()[0].removeprefix("epoch ").replace(",", "")
    )


def test_no_task_is_long(page: Page) -> None:
    """Folded, with opened runs, and with every epoch listed while the list is scrolled to its 5,000th row."""
    longest = []
    for _ in range(ATTEMPTS):
        watch(page)
        show(page, LINEAGE)
        page.wait_for_selector(".level:text-is('folded')")
        page.evaluate("() => document.querySelector('.lineage')?.scrollTo(0, 0)")
        page.locator(".which", has_text="epochs 90,001 to 99,999").wait_for()
        show(page, f"{LINEAGE}?around=55555")
        page.locator(".snapshot.current .which", has_text="epoch 55,555").wait_for()
        show(page, f"{LINEAGE}?zoom=2")
        page.locator(".level:text-is('every epoch')").wait_for()
        page.locator(".which", has_text="epoch 99,998").wait_for()
        for _ in range(MOST_SCROLLS):
            page.evaluate("() => document.querySelector('.lineage').scrollBy(0, 6000)")
            page.wait_for_timeout(50)
            if _last(page) < SCROLLED_TO:
                break
        assert _last(page) < SCROLLED_TO
        longest.append(longest_task(page))
        if longest[-1] <= LONGEST_TASK_MS:
            break
    assert min(longest) <= LONGEST_TASK_MS, longest
