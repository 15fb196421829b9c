"""Restart loops of an application: the cause, the number of failures, and the time of the next attempt."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from epochal.client import Client
from epochal.contracts.catalog import Failure

if TYPE_CHECKING:
    from tests.service.conftest import Plane

SOURCE_FAILURE = Failure(type="source-error", message="The folder is not there.\nLook for it.", step="E2")
RESTART = {"max_restarts": 4, "backoff_seconds": 30.0, "backoff_limit_seconds": 1000.0}


def test_restart_loop_shows_its_cause(plane: Plane) -> None:
    plane.application(configuration={"restart": RESTART})
    assert plane.get("/v1/applications/flights")["restarts"] is None
    for pause in (30, 60):
        driver = plane.driver()
        driver.running()
        driver.catalog.finish(SOURCE_FAILURE)
        application = plane.get("/v1/applications/flights")
        restarts = application["restarts"]
        assert application["state"] == "starting"
        assert (restarts["failures"], restarts["allowed"]) == (pause // 30, 4)
        assert (restarts["failure"]["type"], restarts["failure"]["message"]) == ("source-error", SOURCE_FAILURE.message)
        failed_at, again = (datetime.fromisoformat(restarts[name]) for name in ("failed_at", "next_attempt_at"))
        assert again - failed_at == timedelta(seconds=pause)

    successor = plane.driver()
    successor.running()
    running = plane.get("/v1/applications/flights")
    assert (running["state"], running["restarts"]["failures"]) == ("running", 2)
    assert running["restarts"]["next_attempt_at"] is None
    with Client(plane.settings.url, str(plane.client.headers["authorization"]).removeprefix("Bearer ")) as client:
        [listed] = client.applications.list()
    assert listed.restarts is not None and listed.restarts.failure.message == SOURCE_FAILURE.message

    plane.post("/v1/applications/flights/stop")
    successor.stop()
    assert plane.get("/v1/applications/flights")["restarts"] is None


def test_permanent_failure_has_no_next_attempt(plane: Plane) -> None:
    plane.application(configuration={"restart": RESTART})
    driver = plane.driver()
    driver.catalog.finish(Failure(type="author-error", message="division by zero"))
    restarts = plane.get("/v1/applications/flights")["restarts"]
    assert (restarts["failures"], restarts["next_attempt_at"]) == (1, None)


def test_failures_before_the_window_do_not_count(plane: Plane) -> None:
    plane.application(configuration={"restart": {**RESTART, "window_seconds": 0.001}})
    driver = plane.driver()
    driver.running()
    driver.catalog.finish(SOURCE_FAILURE)
    plane.driver().running()
    assert plane.get("/v1/applications/flights")["restarts"] is None
