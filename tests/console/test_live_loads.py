"""Pages follow the loads of applications by events, without reading them again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from epochal.contracts.measurements import DriverReport, Load, Moment, SourceReport
from epochal.service.domain.settings import Settings
from epochal.service.runtime.events import loads
from tests.console.browsing import opened, show, sign_in
from tests.console.cut_connections import LOOPBACK, CutConnections
from tests.service.conftest import Driver, Plane, StandInSupervisor, free_port, http_client, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


class Reporting:
    """A control plane with the running applications ``flights`` and ``orders``, whose drivers only report."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.connections = CutConnections(plane.settings.port)
        self.drivers: dict[str, Driver] = {}
        self._reports = 0
        for name in ("flights", "orders"):
            plane.application(name)
            self.drivers[name] = plane.driver(name)
            self.drivers[name].running()
            self.drivers[name].epoch()
            self.report(name, 1000)

    def report(self, name: str, rows: int, **more: Any) -> None:
        self._reports += 1
        load = Load(version=1, parallelism=2, epoch=1, seconds=10, rows_read={"in": rows})
        moment = Moment(sources={"in": SourceReport(records=0)}, load=load, **more)
        self.drivers[name].catalog.report(DriverReport(number=self._reports, moment=moment))


@pytest.fixture(scope="module")
def reporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reporting]:
    settings = Settings(data=tmp_path_factory.mktemp("loads") / "data", port=free_port())
    supervisor = StandInSupervisor()
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(settings, supervisor) as (control, token),
        http_client(settings, token) as client,
    ):
        patch.setattr(loads, "LOAD_SECONDS", 1.0)
        reporting = Reporting(Plane(control, client, settings, supervisor, []))
        yield reporting
        reporting.connections.cut()


@pytest.fixture
def page(browser: Browser, reporting: Reporting) -> Iterator[Page]:
    with opened(browser) as page:
        page.goto(f"http://{LOOPBACK}:{reporting.connections.port}/console/applications")
        sign_in(page, reporting.plane.admin_token)
        live(page)
        yield page


def live(page: Page) -> None:
    page.wait_for_selector("header .live[title^='Live:']", timeout=60_000)


def shown(page: Page, application: str, text: str) -> None:
    page.locator(".approw", has_text=application).locator(f"text={text}").first.wait_for(timeout=20_000)


def test_the_list_of_applications_follows_loads_by_events(page: Page, reporting: Reporting) -> None:
    read: list[str] = []
    page.on("request", lambda request: read.append(request.url) if "/v1/lags" in request.url else None)
    page.reload()
    live(page)
    shown(page, "flights", "100 rows/s")
    reporting.report("flights", 4000)
    shown(page, "flights", "400 rows/s")
    shown(page, "orders", "100 rows/s")
    reporting.report("orders", 1000, blocked_sinks={"out": datetime.now(UTC)})
    shown(page, "orders", "waits for sink out")
    assert len(read) <= 2, "once, and again after the stream began"


def test_loads_that_changed_while_the_stream_was_cut_are_shown(page: Page, reporting: Reporting) -> None:
    reporting.connections.cut()
    page.wait_for_selector("header .live.retrying", timeout=60_000)
    reporting.report("flights", 7000)
    reporting.connections.restore()
    live(page)
    shown(page, "flights", "700 rows/s")


def test_the_overview_shows_a_load_without_an_epoch(page: Page, reporting: Reporting) -> None:
    show(page, "/console/applications/flights")
    page.wait_for_selector("text=Rates are the mean")
    reporting.report("flights", 1000, store_away_since=datetime.now(UTC))
    page.wait_for_selector("text=The snapshot store has not answered", timeout=20_000)
    reporting.report("flights", 1000)
    page.wait_for_selector("text=The snapshot store has not answered", state="detached", timeout=20_000)


def test_the_events_page_has_transactions_and_no_loads(page: Page, reporting: Reporting) -> None:
    show(page, "/console/events?kind=transaction")
    reporting.report("flights", 5000, blocked_sinks={"out": datetime.now(UTC)})
    page.wait_for_selector("ol.events >> text=sink out is blocked since")
    reporting.report("flights", 1000)
    page.wait_for_selector("ol.events >> text=sink out is free")
    kind = page.locator("main select")
    kind.select_option("")
    assert "load" not in kind.locator("option").all_inner_texts()
    assert set(page.locator("ol.events .kind").all_inner_texts()) == {"transaction"}
