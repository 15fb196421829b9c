"""An application whose input has ended is drained and stops; no execution continues from its last snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.bundles import exported, finished, imported, refused

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

FLIGHTS = "/v1/applications/flights"


def running(plane: Plane, **more: Any) -> Driver:
    delays = {"id": "delays", "operator": "delays", "kind": "value", "value": [{"name": "worst", "type": "int"}]}
    artifact = plane.artifact(tables=[{**delays, "key": [{"name": "airport", "type": "string"}]}])
    plane.application(artifact=artifact, **more)
    driver = plane.driver()
    driver.running()
    driver.epochs(3)
    return driver


def drained(plane: Plane, **more: Any) -> Driver:
    """An application whose last epoch, number 4, was the drain."""
    driver = running(plane, **more)
    driver.epoch(opened_for=("drain",))
    driver.catalog.finish(None)
    return driver


def refusal(plane: Plane, path: str, **body: Any) -> str:
    answer = plane.client.post(f"{FLIGHTS}/{path}", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:incompatible-state"), answer.text
    return str(answer.json()["detail"])


def test_a_drained_application_is_stopped_and_reports_the_reason(plane: Plane) -> None:
    drained(plane)
    application = plane.get(FLIGHTS)
    assert (application["state"], application["failure"]) == ("stopped", None)
    assert "all sources have ended" in application["detail"] and "drained" in application["detail"]
    assert (application["head"]["epoch"], application["head"]["drained"]) == (4, True)
    last, *before = plane.get(f"{FLIGHTS}/epochs")["items"]
    assert last["opened_for"] == ["drain"]
    assert not any(epoch["opened_for"] for epoch in before)
    assert any(event.data.get("opened_for") == ["drain"] for event in plane.events if event.kind == "epoch")
    assert plane.get(f"{FLIGHTS}/snapshots/4")["epoch"] == 4


def test_no_command_continues_from_a_drained_snapshot(plane: Plane) -> None:
    drained(plane)
    attempted: list[tuple[str, dict[str, Any]]] = [
        ("start", {}),
        ("start", {"drain": False}),
        ("restart", {}),
        ("rescale", {"parallelism": 3}),
        ("versions", {"parameters": {"out": "/data/other"}}),
        ("fork", {"name": "copy", "parameters": {"out": "/data/copy"}}),
        ("rollback", {"epoch": 4, "dry_run": True}),
        ("rekey", {"max_parallelism": 64}),
    ]
    for path, body in attempted:
        assert "Roll back to epoch 3, or fork it. To continue" in refusal(plane, path, **body), path
        assert plane.get(f"{FLIGHTS}/versions")["items"][0]["number"] == 1, path


def test_the_snapshot_before_the_drain_is_retained_for_forks_and_rollbacks(plane: Plane) -> None:
    drained(plane, configuration={"retained_epochs": 1})
    assert finished(plane, plane.post("/v1/collections", grace_seconds=0))["state"] == "succeeded"
    assert plane.client.get(f"{FLIGHTS}/snapshots/2").status_code == 410
    plane.post(f"{FLIGHTS}/fork", 201, name="copy", epoch=3, parameters={"out": "/data/copy"})
    confirm = plane.post(f"{FLIGHTS}/rollback", 200, epoch=3, dry_run=True)["confirm"]
    plane.post(f"{FLIGHTS}/rollback", 202, epoch=3, confirm=confirm)
    plane.post(f"{FLIGHTS}/start", drain=False)
    driver = plane.driver()
    assert driver.head is not None and driver.head.epoch == 3
    assert not plane.control.ledger.plan(driver.execution).drain
    assert not plane.get(f"{FLIGHTS}/executions/{driver.execution}")["drain"]


def test_a_start_completes_the_commits_of_a_drain(plane: Plane) -> None:
    driver = running(plane)
    driver.epoch(commit=False, opened_for=("drain",))
    driver.catalog.finish(None)
    plane.post(f"{FLIGHTS}/start")
    again = plane.driver()
    assert [record.epoch for record in again.point.prepared] == [4]
    again.catalog.commit_epoch(4)
    again.catalog.finish(None)
    assert "Roll back to epoch 3" in refusal(plane, "start")


def test_a_restart_keeps_the_option_against_draining(plane: Plane) -> None:
    driver = running(plane, drain=False)
    plane.post(f"{FLIGHTS}/restart")
    driver.stop()
    assert not plane.control.ledger.plan(plane.get(FLIGHTS)["execution"]).drain


@pytest.mark.alternating(2)
def test_an_import_of_a_drained_application_is_drained(plane: Plane, other: Plane) -> None:
    drained(plane)
    bundle = exported(plane)
    done = imported(other, bundle)
    assert done["state"] == "succeeded", done["error"]
    assert other.get(FLIGHTS)["head"]["drained"] is True
    assert "the state is drained" in other.get(FLIGHTS)["detail"]
    assert "Roll back to epoch 3" in refusal(other, "start")
    other.post(f"{FLIGHTS}/fork", 201, name="copy", epoch=3, parameters={"out": "/data/copy"})
    confirm = other.post(f"{FLIGHTS}/rollback", 200, epoch=3, dry_run=True)["confirm"]
    other.post(f"{FLIGHTS}/rollback", 202, epoch=3, confirm=confirm)
    other.post(f"{FLIGHTS}/start")
    head = other.driver().head
    assert head is not None and head.epoch == 3


@pytest.mark.alternating(2)
def test_an_import_of_a_drained_application_cannot_start(plane: Plane, other: Plane) -> None:
    drained(plane)
    status, slug, detail = refused(other, exported(plane), start=True)
    assert (status, slug) == (422, "incompatible-state")
    assert "Epoch 4 is drained" in detail and "to continue here, export epoch 3" in detail
    before = imported(other, exported(plane, epoch=3), start=True)
    assert before["state"] == "succeeded", before["error"]
