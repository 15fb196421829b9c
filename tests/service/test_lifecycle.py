"""The life cycle of an application over HTTP: operations that changed what runs, and recoveries, as one list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epochal.cli.lifecycle import lifecycle_table
from epochal.client import Client
from epochal.contracts.catalog import Failure
from epochal.service.catalog import models
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

PATH = "/v1/applications/flights/lifecycle"
LOST = Failure(type="driver-lost", message="Its heartbeat has timed out.")


@pytest.fixture
def driver(plane: Plane) -> Driver:
    plane.application(configuration={"parallelism": 2})
    driver = plane.driver()
    driver.running()
    return driver


def listed(plane: Plane, **query: Any) -> list[Any]:
    return list(plane.client.get(PATH, params=query).json()["items"])


def recovered(plane: Plane, driver: Driver) -> Driver:
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", LOST)
    successor = plane.driver()
    successor.running()
    return successor


def test_operations_and_recoveries_are_listed_newest_first(plane: Plane, driver: Driver) -> None:
    successor = recovered(plane, driver)
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4, message="busy")
    newest, recovery, start = listed(plane)
    assert [newest["kind"], recovery["kind"], start["kind"]] == ["rescale", "recovery", "start"]
    assert (newest["operation"], newest["state"], newest["seconds"]) == (rescale["id"], "running", None)
    assert (newest["before"], newest["after"]) == (
        {"version": 1, "parallelism": 2, "parallelisms": {}},
        {"version": 2, "parallelism": 4, "parallelisms": {}},
    )
    assert (newest["message"], newest["by"]) == ("busy", "admin")
    assert (recovery["attempt"], recovery["state"], recovery["operation"]) == (successor.attempt, "succeeded", None)
    assert recovery["cause"]["type"] == "driver-lost" and recovery["seconds"] >= 0
    assert recovery["began_at"] <= recovery["ended_at"] and recovery["before"] is None
    assert start["state"] == "succeeded" and start["seconds"] >= 0 and start["after"] is None


def test_a_driver_that_has_not_taken_over_is_in_progress(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", LOST)
    plane.control.ledger.new_attempt(driver.execution)
    recovery = listed(plane)[0]
    assert (recovery["kind"], recovery["state"], recovery["ended_at"]) == ("recovery", "running", None)


def test_pages_together_are_the_whole_list(plane: Plane, driver: Driver) -> None:
    for _ in range(3):
        driver = recovered(plane, driver)
    plane.post("/v1/applications/flights/stop")
    with plane.control.database.writing() as session:  # items that began at the same time
        moment = session.query(models.Operation).order_by(models.Operation.id).first()
        assert moment is not None
        for row in session.query(models.Attempt):
            row.started_at = moment.created_at
        for row in session.query(models.Operation):
            row.created_at = moment.created_at
    whole = listed(plane)
    assert [item["kind"] for item in whole] == ["stop", "start", "recovery", "recovery", "recovery"]
    for limit in (1, 2, 3):
        found, cursor = [], None
        while True:
            page = plane.client.get(PATH, params={"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
            assert len(page["items"]) <= limit
            found += page["items"]
            if (cursor := page["next_cursor"]) is None:
                break
        assert found == whole


def test_savepoints_and_other_applications_are_left_out(plane: Plane, driver: Driver) -> None:
    plane.application("other")
    driver.epochs(1)
    plane.post("/v1/applications/flights/savepoints", name="monday")
    assert [item["kind"] for item in listed(plane)] == ["start"]
    check_problem(plane.client.get("/v1/applications/unknown/lifecycle"), 404, "not-found")
    assert plane.as_bearer(None).get(PATH).status_code == 401


def test_the_client_and_the_table_show_the_items(plane: Plane, driver: Driver) -> None:
    recovered(plane, driver)
    with Client(plane.settings.url, token=plane.admin_token) as client:
        items = client.application("flights").lifecycle()
    assert [item.kind for item in items] == ["recovery", "start"]
    assert lifecycle_table(items) and lifecycle_table([])
