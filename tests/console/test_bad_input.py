"""Open pages whose session, control plane, event stream or network fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from epochal.service.catalog.events import EventRepository
from epochal.service.catalog.types import now
from epochal.service.domain.settings import Settings
from tests.console.browsing import admin_token, committed, opened, show, sign_in
from tests.console.cut_connections import LOOPBACK, CutConnections
from tests.kit.waiting import eventually
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.lookups import DELAYS, StateDriver, route

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

    from epochal.testing.servers.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.long]

LINEAGE = "/console/applications/flights/lineage"
OVERVIEW = "/console/applications/flights"
STREAM = "**/v1/events*"
AHEAD = "{ const real = Date.now; Date.now = () => real() + 7 * 3600 * 1000; }"
"""A clock that is seven hours ahead."""


class Served:
    """A control plane without Spark, the driver of ``flights``, and the connections of browsers."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.connections = CutConnections(plane.settings.port)
        self.url = f"http://{LOOPBACK}:{self.connections.port}"
        plane.application()
        self._driver = StateDriver(plane, tables=(DELAYS,))
        for _ in range(3):
            self.epoch()

    def epoch(self) -> int:
        number = self._driver.next_epoch
        return self._driver.epoch((DELAYS, [route("JFK", "LAX", number, 0.5)]))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = Settings(data=tmp_path_factory.mktemp("bad-input") / "data", port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        served = Served(Plane(control, client, settings, supervisor, []))
        yield served
        served.connections.cut()


@contextmanager
def signed_in(browser: Browser, served: Served, path: str, token: str | None = None) -> Iterator[Page]:
    with opened(browser) as page:
        page.goto(served.url + path)
        sign_in(page, token or served.plane.admin_token)
        yield page


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    with signed_in(browser, served, OVERVIEW) as page:
        live(page)
        yield page


def live(page: Page) -> None:
    page.wait_for_selector("header .live[title^='Live:']", timeout=60_000)


def committed_shown(page: Page) -> list[str]:
    """Texts of the committed epochs that the events page shows, newest first, with repetitions."""
    return [text for text in page.locator("ol.events .grow").all_inner_texts() if "committed" in text]


def answer(status: int, slug: str, detail: str) -> Callable[[Route], None]:
    """Answer requests with this problem, as the control plane does."""
    body = json.dumps({"type": f"urn:epochal:problem:{slug}", "status": status, "detail": detail})
    return lambda route: route.fulfill(status=status, content_type="application/problem+json", body=body)


def test_an_expired_token_asks_for_another_and_the_view_stays(browser: Browser, served: Served) -> None:
    body = {"name": "short", "role": "viewer", "expires_at": (now() + timedelta(seconds=25)).isoformat()}
    token = served.plane.post("/v1/tokens", 201, **body)["token"]
    with signed_in(browser, served, f"{LINEAGE}?pick=2#key=a", token) as page:
        page.wait_for_selector("#picked-title")
        page.wait_for_selector("text=The session has ended", timeout=60_000)
        assert page.url.endswith(f"{LINEAGE}?pick=2#key=a")
        sign_in(page, served.plane.admin_token)
        page.wait_for_selector("#picked-title:text-is('flights, epoch 2')")
        assert page.locator("text=The session has ended").count() == 0
        live(page)


def test_a_forbidden_panel_says_so_and_the_others_work(page: Page) -> None:
    page.route("**/snapshots/1/diff*", answer(403, "forbidden", "Your role in project 'default' may not do this."))
    show(page, f"{LINEAGE}?pick=1,3")
    page.wait_for_selector(".diff [role=alert] >> text=may not do this")
    page.wait_for_selector(".lineage .snapshot")
    page.unroute("**/snapshots/1/diff*")
    page.click(".diff [role=alert] button")
    page.wait_for_selector(".diff h3")
    assert page.locator("[role=alert]").count() == 0


def test_a_project_without_a_role_is_refused_readably(browser: Browser, served: Served) -> None:
    served.plane.client.post("/v1/projects", json={"name": "other"})
    token = served.plane.post("/v1/projects/other/tokens", 201, name="guest", role="viewer")["token"]
    with signed_in(browser, served, "/console/applications/flights", token) as page:
        page.wait_for_selector("main [role=alert]")
        assert "default" in page.locator("main [role=alert] p").first.inner_text()
        show(page, "/console/projects/other/applications")
        page.wait_for_selector("main [role=alert]", state="detached")


def test_a_stream_that_was_cut_continues_after_the_last_event(page: Page, served: Served) -> None:
    show(page, "/console/events")
    first = served.epoch()
    page.wait_for_selector("main >> text=committed")
    resumed: list[str | None] = []
    page.on("request", lambda request: resumed.append(_resumed(request)) if "/v1/events" in request.url else None)
    served.connections.cut()
    page.wait_for_selector("header .live.retrying", timeout=60_000)
    served.connections.restore()
    later = [served.epoch(), served.epoch()]
    live(page)
    page.locator("ol.events .grow", has_text=f"{later[-1]} committed").first.wait_for()
    numbers = [int(number) for text in committed_shown(page) for number in re.findall(r"\d+", text)[:1]]
    assert numbers == [*reversed(later), first]
    assert resumed[-1] is not None and resumed[-1].startswith("flights/")


def test_a_view_without_an_answer_is_read_again(page: Page, served: Served) -> None:
    page.click("nav.tabs >> text=Sinks and operations")
    page.wait_for_selector("text=No transaction waits")
    page.click("nav.tabs >> text=Overview")
    page.wait_for_selector(".epoch.committed")
    served.connections.cut()
    try:
        page.wait_for_selector("header .live.retrying", timeout=60_000)
        page.click("nav.tabs >> text=Sinks and operations")
        page.wait_for_selector("main [role=alert] >> text=does not answer")
    finally:
        served.connections.restore()
    page.wait_for_selector("main [role=alert]", state="detached", timeout=60_000)
    page.click("nav.tabs >> text=Overview")
    number = served.epoch()
    row = page.locator(".epoch.committed", has=page.locator(f".number:text-is('{number}')"))
    row.first.wait_for(timeout=60_000)
    assert row.count() == 1


def test_a_control_plane_that_restarts_is_followed_again(browser: Browser, plane: ControlPlane) -> None:
    """The application runs on meanwhile: its next epochs appear without reloading, each once."""
    with opened(browser) as page:
        page.goto(f"{plane.url}/console/applications/hostile")
        sign_in(page, admin_token(plane))
        page.wait_for_selector(".epoch.committed")
        live(page)
        plane.restart()
        with plane.client() as client:
            before = committed(client)
            eventually(lambda: committed(client) > before, 120)
        live(page)
        page.wait_for_selector(f".epoch.committed >> text=/^{before + 1}$/", timeout=60_000)
        assert page.locator(f".epoch >> text=/^{before + 1}$/").count() == 1


def test_expired_events_reload_the_data(page: Page, served: Served) -> None:
    served.epoch()
    show(page, "/console/events")
    page.wait_for_selector("main >> text=committed")
    show(page, LINEAGE)
    page.wait_for_selector(".lineage .snapshot")
    statuses: list[int] = []
    page.on("response", lambda got: statuses.append(got.status) if "/v1/events" in got.url else None)
    page.route(STREAM, lambda route: route.abort())
    served.connections.cut()
    served.connections.restore()
    number = served.epoch()
    served.epoch()
    database = served.plane.control.database
    with database.reading() as session:
        newest = EventRepository(session).last("flights")
    with database.writing() as session:
        EventRepository(session).remove("flights", newest, 1000)
    page.unroute(STREAM)
    live(page)
    assert statuses[0] == 410 and statuses[-1] == 200
    page.locator(".which", has_text=f"epoch {number + 1}").first.wait_for()


def test_a_refused_stream_does_not_stop_the_page(page: Page, served: Served) -> None:
    """The views are read again with each attempt, also while the control plane refuses the stream."""
    page.route(STREAM, answer(429, "too-many-requests", "Too many event streams."))
    show(page, LINEAGE)
    served.connections.cut()
    served.connections.restore()
    number = served.epoch()
    page.locator(".which", has_text=f"epoch {number}").first.wait_for(timeout=60_000)
    page.unroute(STREAM)
    live(page)


def test_ages_are_right_where_the_clock_is_wrong(browser: Browser, served: Served) -> None:
    served.epoch()
    with opened(browser) as page:
        page.add_init_script(AHEAD)
        page.goto(served.url + OVERVIEW)
        sign_in(page, served.plane.admin_token)
        age = page.locator("header.title time").first
        age.wait_for()
        eventually(lambda: age.inner_text() == "now" or age.inner_text().endswith(" s ago"), 10)


def test_a_part_that_fails_to_load_is_loaded_again(page: Page) -> None:
    page.route("**/assets/lineage-*.js", lambda route: route.abort())
    page.click("nav.tabs >> text=Lineage")
    page.wait_for_selector("main [role=alert] >> text=could not be loaded")
    page.unroute("**/assets/lineage-*.js")
    page.click("main [role=alert] button")
    page.wait_for_selector(".lineage .snapshot")
    assert page.locator("[role=alert]").count() == 0


@pytest.mark.parametrize("failure", ["no answer", "status 503"])
def test_a_session_continues_when_the_control_plane_answers_again(page: Page, failure: str) -> None:
    refuse = answer(503, "starting", "The control plane is starting.")
    page.route("**/v1/session", (lambda route: route.abort()) if failure == "no answer" else refuse)
    page.reload()
    page.wait_for_selector("text=does not answer")
    assert page.locator("input[name=token]").count() == 0
    page.unroute("**/v1/session")
    page.wait_for_selector("header.top", timeout=30_000)


def test_an_action_without_an_answer_is_not_promised_to_be_repeated(page: Page) -> None:
    page.route("**/savepoints", lambda route: route.abort())
    page.click("button:text-is('Savepoint')")
    page.locator("dialog input").first.fill("lost")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog [role=alert] >> text=check before you repeat it")


def _resumed(request: Request) -> str | None:
    return request.headers.get("last-event-id")
