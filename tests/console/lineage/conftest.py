"""A control plane whose applications have a history: a fork of other code, a rollback, and 20 epochs that fold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.service.domain.settings import Settings
from tests.console.browsing import SCRIPT, opened, sign_in
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.lookups import DELAYS, StateDriver, route

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLIGHTS = "/v1/applications/flights"
LONG = f"{SCRIPT}\u202eright to left " + "long " * 100


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """``flights`` is stopped at epoch 26 after a rollback from 9 to 6; its fork ``strict`` of epoch 6 runs other code
    with other parameters; ``orders`` has no common snapshot with them. No Spark: the drivers are stand-ins."""
    settings = Settings(data=tmp_path_factory.mktemp("lineage") / "data", port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        plane = Plane(control, client, settings, supervisor, [])
        plane.application()
        code = plane.get(FLIGHTS)["artifact"]
        driver = StateDriver(plane, tables=(DELAYS,))
        for epoch in range(1, 10):
            driver.epoch((DELAYS, [route("JFK", "LAX", epoch, 0.5), route("JFK", f"N{epoch}", 1, 1.0)]), artifact=code)
        plane.post(f"{FLIGHTS}/snapshots/6/message", 201, message=LONG)
        driver.savepoint("before-strict")
        strict(plane)
        orders(plane)
        plane.post(f"{FLIGHTS}/stop")
        driver.driver.stop()
        confirm = plane.post(f"{FLIGHTS}/rollback", 200, dry_run=True, epoch=6)["confirm"]
        plane.post(f"{FLIGHTS}/rollback", epoch=6, confirm=confirm, message="three wrong days")
        plane.post(f"{FLIGHTS}/start")
        driver = StateDriver(plane, tables=(DELAYS,))
        while driver.next_epoch <= 26:
            driver.epoch((DELAYS, [route("JFK", "LAX", driver.next_epoch, 0.5)]), artifact=code)
        plane.post(f"{FLIGHTS}/stop")
        driver.driver.stop()
        yield plane


def strict(plane: Plane) -> None:
    """Fork ``strict`` from epoch 6 of ``flights``, with other code, and commit three epochs."""
    artifact = plane.artifact(warnings=["other code"])
    body = {"name": "strict", "epoch": 6, "artifact": artifact, "parameters": {"out": "/data/strict"}}
    plane.post(f"{FLIGHTS}/fork", 201, message="only an hour counts", **body)
    driver = StateDriver(plane, "strict", tables=(DELAYS,))
    for delay in (60, 61, 62):
        driver.epoch(
            (DELAYS, [route("JFK", "LAX", delay, 9.5)]),
            artifact=artifact,
            parameters={"threshold": 60, "names": [SCRIPT]},
        )


def orders(plane: Plane) -> None:
    """Create an application with epochs of its own."""
    plane.application("orders")
    driver = StateDriver(plane, "orders", tables=(DELAYS,))
    for epoch in range(1, 4):
        driver.epoch((DELAYS, [route("A", "B", epoch, 0.5)]))


@pytest.fixture
def page(browser: Browser, plane: Plane) -> Iterator[Page]:
    """The lineage page after sign-in. The test fails if it raises an error, breaks its policy or runs a name."""
    with opened(browser) as page:
        page.goto(f"{plane.settings.url}/console/applications/flights/lineage")
        sign_in(page, plane.admin_token)
        page.wait_for_selector(".lineage .snapshot")
        yield page
