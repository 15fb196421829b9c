"""Prepared, uncommitted transactions of sinks over HTTP: lists, decisions by an admin, and their records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from epochal.contracts.catalog import DriverStatus, Failure, OpenTransaction
from epochal.contracts.identity import EpochKey

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

PATH = "/v1/applications/flights/transactions"
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def driver(plane: Plane) -> Driver:
    """Two epochs are prepared; the sink ``out`` cannot commit the first one."""
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch(commit=False)
    driver.epoch(commit=False)
    report(driver, 1, 2)
    return driver


def report(driver: Driver, *epochs: int) -> list[Any]:
    error, since = ("the broker is away", SINCE) if epochs else (None, None)
    open = tuple(OpenTransaction(sink="out", epoch=epoch, rows=7, error=error, since=since) for epoch in epochs)
    return list(driver.catalog.heartbeat(DriverStatus(phase="waiting", transactions=open)))


def test_open_transactions_are_listed_with_the_reason(plane: Plane, driver: Driver) -> None:
    items = plane.get(PATH)["items"]
    assert [(item["epoch"], item["sink"], item["rows"], item["driver"]) for item in items] == [
        (1, "out", 7, True),
        (2, "out", 7, True),
    ]
    assert items[0]["error"] == "the broker is away"
    assert items[0]["waiting_since"] == "2026-01-02T03:04:05Z"
    assert items[0]["prepared_at"] is not None


def test_transactions_committed_since_the_last_heartbeat_are_not_listed(plane: Plane, driver: Driver) -> None:
    driver.catalog.commit_epoch(1)
    assert [item["epoch"] for item in plane.get(PATH)["items"]] == [2]


def test_abort_is_carried_out_and_recorded_in_lineage_and_audit_log(plane: Plane, driver: Driver) -> None:
    decision = plane.post(f"{PATH}/out/1/abort", message="the topic was dropped")
    (directive,) = report(driver, 1, 2)
    assert directive.kind == "transaction"
    assert directive.arguments == {
        "sink": "out",
        "epoch": 1,
        "action": "abort",
        "by": "admin",
        "message": "the topic was dropped",
    }
    driver.catalog.commit_epoch(1)
    driver.catalog.complete(directive.id, None)
    assert plane.get(f"/v1/operations/{decision['id']}")["state"] == "succeeded"
    nodes = {node["epoch"]: node for node in plane.get("/v1/applications/flights/lineage")["nodes"]}
    assert [change["kind"] for change in nodes[2]["changes"]] == []
    (change,) = [change for change in nodes[1]["changes"] if change["kind"] == "transaction"]
    assert change["detail"] == {"sink": "out", "action": "abort", "by": "admin", "message": "the topic was dropped"}
    assert f"{PATH}/out/1/abort" in [entry["target"] for entry in plane.get("/v1/audit")["items"]]


def test_decision_that_is_too_late_fails(plane: Plane, driver: Driver) -> None:
    decision = plane.post(f"{PATH}/out/1/commit")
    (directive,) = report(driver, 1, 2)
    driver.catalog.complete(directive.id, None, Failure(type="conflict", message="Epoch 1 is not open any more."))
    failed = plane.get(f"/v1/operations/{decision['id']}")
    assert (failed["state"], failed["error"]["detail"]) == ("failed", "conflict: Epoch 1 is not open any more.")


def test_decisions_require_an_admin(plane: Plane, driver: Driver) -> None:
    with plane.as_bearer(plane.token("author")) as client:
        assert client.get(PATH).status_code == 200
        assert client.post(f"{PATH}/out/1/abort", json={}).status_code == 403
    assert report(driver, 1, 2) == []


@pytest.mark.parametrize(
    ("path", "status"), [("out/9/retry", 404), ("nothing/1/abort", 404), ("out/1/forget", 422), ("out/x/abort", 422)]
)
def test_decisions_on_unknown_transactions_are_refused(plane: Plane, driver: Driver, path: str, status: int) -> None:
    answer = plane.client.post(f"{PATH}/{path}", json={})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_without_a_driver_transactions_are_listed_but_not_decided(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch(commit=False, sinks={"out": 3})
    driver.catalog.finish(None)
    (item,) = plane.get(PATH)["items"]
    assert (item["epoch"], item["sink"], item["rows"], item["driver"], item["error"]) == (1, "out", 3, False, None)
    answer = plane.client.post(f"{PATH}/out/1/abort", json={})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:epochal:problem:conflict")
    assert "Start it" in answer.json()["detail"]
    assert EpochKey(item["branch"], 1) == driver.head_key
