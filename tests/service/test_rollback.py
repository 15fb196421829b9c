"""Rollback over HTTP: the plan, its confirmation, the new branch, and the point from which a driver then starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.contracts.catalog import EpochRange, Failure
from epochal.contracts.identity import EpochKey
from epochal.snapshots.immutable_cache import SizedCache

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

ROLLBACK = "/v1/applications/flights/rollback"


def running(plane: Plane, epochs: int = 5, **more: Any) -> Driver:
    plane.application(**more)
    driver = plane.driver()
    driver.running()
    for _ in range(epochs):
        driver.epoch(sinks={"out": 10})
    return driver


def stop(plane: Plane, driver: Driver) -> None:
    plane.post("/v1/applications/flights/stop")
    driver.stop()


def started(plane: Plane) -> Driver:
    plane.post("/v1/applications/flights/start")
    driver = plane.driver()
    driver.running()
    return driver


def plan(plane: Plane, **target: Any) -> dict[str, Any]:
    return dict(plane.post(ROLLBACK, 200, dry_run=True, **target))


def rolled_back(plane: Plane, **target: Any) -> dict[str, Any]:
    confirm = plan(plane, **target)["confirm"]
    return dict(plane.post(ROLLBACK, 202, **target, confirm=confirm))


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def test_plan_lists_abandoned_epochs_and_changes_nothing(plane: Plane) -> None:
    driver = running(plane)
    stop(plane, driver)
    before = plane.get("/v1/applications/flights")
    answer = plan(plane, epoch=2)

    assert (answer["now"]["epoch"], answer["to"]["epoch"], answer["restarts"]) == (5, 2, False)
    assert (answer["epochs"], answer["first"], answer["last"]) == (3, 3, 5)
    assert (answer["version"], answer["version_then"]) == (1, 1)
    (sink,) = answer["sinks"]
    assert (sink["sink"], sink["kind"], sink["epochs"], sink["rows"], sink["rule"]) == ("out", "files", 3, 30, "stays")
    assert plan(plane, epoch=2, move_aside=True)["sinks"][0]["rule"] == "moved-aside"
    assert plane.get("/v1/applications/flights") == before
    assert plane.get("/v1/operations")["items"][0]["kind"] == "stop"


def test_rollback_plan_reports_expired_epochs_as_uncounted(plane: Plane) -> None:
    driver = running(plane, configuration={"retained_epochs": 2})
    plane.post("/v1/applications/flights/snapshots/4/pin", 201)
    for _ in range(3):
        driver.epoch(sinks={"out": 10}, checkpoints=True)
    operation = plane.post("/v1/collections", grace_seconds=0)
    while plane.get(f"/v1/operations/{operation['id']}")["state"] == "running":
        time.sleep(0.02)
    assert plane.client.get("/v1/applications/flights/snapshots/6").status_code == 410
    stop(plane, driver)
    answer = plan(plane, epoch=4)
    assert (answer["epochs"], answer["uncounted"]) == (4, 2)
    shown = {(sink["target"], sink["epochs"], sink["rows"]) for sink in answer["sinks"]}
    assert shown == {("files:/out", 2, 20), ("files:/data/flights", None, None)}
    assert rolled_back(plane, epoch=4)["state"] == "succeeded"


def test_rollback_skips_a_damaged_snapshot(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.snapshots.store._manifests", SizedCache(0))
    driver = running(plane)
    stop(plane, driver)
    damaged = plane.get("/v1/applications/flights/snapshots/4")["reference"]["path"]
    (Path(plane.settings.store_url) / damaged).write_bytes(b"{}")
    answer = plan(plane, epoch=2)
    assert (answer["epochs"], answer["uncounted"]) == (3, 1)
    assert rolled_back(plane, epoch=2)["state"] == "succeeded"


def test_stopped_application_is_rolled_back_immediately(plane: Plane) -> None:
    driver = running(plane)
    stop(plane, driver)
    operation = rolled_back(plane, epoch=2, message="a wrong fare")

    assert (operation["kind"], operation["state"]) == ("rollback", "succeeded")
    branch = operation["result"]["branch"]
    assert operation["result"]["parent"] == {"branch": driver.point.branch, "epoch": 2}
    assert operation["result"]["left"] == {"branch": driver.point.branch, "epoch": 5}
    application = plane.get("/v1/applications/flights")
    assert (application["state"], application["branch"], application["head"]["epoch"]) == ("stopped", branch, 2)

    successor = started(plane)
    assert successor.point.branch == branch
    assert successor.head_key == EpochKey(driver.point.branch, 2)
    assert successor.point.begun is not None
    assert (successor.point.begun.kind, successor.point.begun.detail["message"]) == ("rollback", "a wrong fare")
    assert successor.epoch() == 6
    assert [item["epoch"] for item in plane.get("/v1/applications/flights/epochs")["items"]] == [6, 2, 1]


def test_driver_receives_the_succession_of_its_sinks(plane: Plane) -> None:
    driver = running(plane)
    assert driver.point.succession is None
    stop(plane, driver)
    rolled_back(plane, epoch=2, move_aside=True)
    second = started(plane)
    assert second.point.succession is not None
    assert second.point.succession.branches == (driver.point.branch,)
    assert second.point.succession.left_behind == (EpochRange(first=3, last=5),)
    assert (second.point.succession.last, second.point.succession.move_aside) == (5, True)
    assert (second.point.first_epoch, second.point.next_epoch) == (6, 6)
    second.epoch(sinks={"out": 1})
    stop(plane, second)

    rolled_back(plane, epoch=4)  # forward again, on the previous branch
    third = started(plane)
    assert third.head_key is not None and third.head_key.branch == driver.point.branch
    assert third.point.succession is not None and third.point.succession.branches == tuple(
        sorted((driver.point.branch, second.point.branch))
    )
    assert third.point.succession.left_behind == (EpochRange(first=5, last=5), EpochRange(first=6, last=6))
    assert (third.point.succession.move_aside, third.point.next_epoch) == (False, 7)


def test_running_application_is_stopped_moved_and_restarted(plane: Plane) -> None:
    driver = running(plane)
    answer = plan(plane, epoch=2)
    assert answer["restarts"] and answer["confirm"]
    driver.epoch(sinks={"out": 1})  # the plan of a running application stays valid
    operation = plane.post(ROLLBACK, 202, epoch=2, confirm=answer["confirm"])
    assert (operation["state"], operation["progress"]) == ("running", "stopping")
    driver.stop()

    waiting = plane.get(f"/v1/operations/{operation['id']}")
    assert (waiting["state"], waiting["progress"]) == ("running", "starting")
    successor = plane.driver()
    successor.running()
    done = plane.get(f"/v1/operations/{operation['id']}")
    assert (done["state"], done["result"]["branch"]) == ("succeeded", successor.point.branch)
    assert done["result"]["execution"] == successor.execution
    assert successor.point.head is not None and successor.point.head.epoch == 2
    assert successor.epoch() == 7


def test_rollback_completes_when_the_driver_dies_instead_of_stopping(plane: Plane) -> None:
    driver = running(plane)
    operation = rolled_back(plane, epoch=3)
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", None)
    plane.control.ledger.execution_ended(driver.execution, "failed", Failure(type="driver-lost", message="killed"))

    successor = plane.driver()
    successor.running()
    assert successor.point.head is not None and successor.point.head.epoch == 3
    assert plane.get(f"/v1/operations/{operation['id']}")["state"] == "succeeded"


def test_prepared_epochs_must_be_committed_before_a_rollback(plane: Plane) -> None:
    driver = running(plane)
    driver.epoch(commit=False)
    operation = rolled_back(plane, epoch=3)
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", None)
    plane.control.ledger.execution_ended(driver.execution, "failed", Failure(type="driver-lost", message="killed"))

    failed = plane.get(f"/v1/operations/{operation['id']}")
    assert failed["state"] == "failed" and "decided" in failed["error"]["detail"]
    application = plane.get("/v1/applications/flights")
    assert (application["branch"], application["state"]) == (driver.point.branch, "failed")
    retried = plane.client.post(ROLLBACK, json={"epoch": 3, "confirm": plan(plane, epoch=3)["confirm"]})
    assert problem(retried) == (409, "conflict")


def test_rollback_requires_the_confirmation_of_its_plan(plane: Plane) -> None:
    driver = running(plane)
    stop(plane, driver)
    assert problem(plane.client.post(ROLLBACK, json={"epoch": 2})) == (409, "rollback-not-confirmed")
    seen = plan(plane, epoch=2)["confirm"]
    for other in ({"epoch": 3}, {"epoch": 2, "move_aside": True}):
        answer = plane.client.post(ROLLBACK, json={**other, "confirm": seen})
        assert problem(answer) == (409, "rollback-not-confirmed")
    second = started(plane)
    second.epoch(sinks={"out": 1})
    stop(plane, second)
    answer = plane.client.post(ROLLBACK, json={"epoch": 2, "confirm": seen})
    assert problem(answer) == (409, "rollback-not-confirmed") and "has changed" in answer.json()["detail"]


def test_sinks_without_a_target_need_no_confirmation(plane: Plane) -> None:
    driver = running(plane, artifact=plane.artifact(sinks={"out": "console:"}))
    stop(plane, driver)
    assert plan(plane, epoch=2)["confirm"] is None
    assert plane.post(ROLLBACK, 202, epoch=2)["state"] == "succeeded"


def test_savepoints_tags_and_times_name_snapshots(plane: Plane) -> None:
    driver = running(plane)
    committed = plane.get("/v1/applications/flights/epochs/3")["committed_at"]
    stop(plane, driver)
    plane.post("/v1/applications/flights/savepoints", name="noon")

    assert plan(plane, savepoint="noon")["to"]["epoch"] == 5
    assert plan(plane, at=committed)["to"]["epoch"] == 3
    for target in ({"at": "2001-01-01T00:00:00Z"}, {"epoch": 77}, {"savepoint": "dusk"}, {"tag": "dawn"}):
        assert problem(plane.client.post(ROLLBACK, json=target)) == (404, "not-found")


def test_invalid_input_is_refused(plane: Plane) -> None:
    driver = running(plane, configuration={"retained_epochs": 2})
    for body in ({}, {"epoch": 1, "savepoint": "noon"}, {"at": "2999-01-01T00:00:00Z"}):
        assert problem(plane.client.post(ROLLBACK, json=body)) == (422, "invalid-input")
    for body in ({"epoch": -1}, {"epoch": "two"}, {"epoch": 1, "more": 1}, {"at": "2001-01-01"}, {"confirm": "yes"}):
        assert problem(plane.client.post(ROLLBACK, json=body)) == (422, "invalid-request")
    assert problem(plane.client.post(ROLLBACK, json={"epoch": 1})) == (410, "snapshot-expired")
    assert problem(plane.client.post("/v1/applications/missing/rollback", json={"epoch": 1})) == (404, "not-found")
    driver.epoch(commit=False)
    assert problem(plane.client.post(ROLLBACK, json={"epoch": 6})) == (404, "not-found")


def test_partly_deleted_snapshot_is_refused(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.snapshots.store._manifests", SizedCache(0))
    driver = running(plane)
    stop(plane, driver)
    confirm = plan(plane, epoch=2)["confirm"]
    manifest = plane.get("/v1/applications/flights/snapshots/2")["reference"]["path"]
    (Path(plane.settings.store_url) / manifest).unlink()
    for body in ({"epoch": 2, "dry_run": True}, {"epoch": 2, "confirm": confirm}):
        answer = plane.client.post(ROLLBACK, json=body)
        assert problem(answer)[1] == "file-missing" and manifest in answer.json()["detail"]
    assert plane.get("/v1/applications/flights")["branch"] == driver.point.branch


def test_second_operation_is_refused(plane: Plane) -> None:
    running(plane)
    rolled_back(plane, epoch=2)
    answer = plane.client.post(ROLLBACK, json={"epoch": 3})
    assert problem(answer) == (409, "conflict") and "rollback" in answer.json()["detail"]


def test_viewers_may_not_roll_back(plane: Plane) -> None:
    running(plane)
    with plane.as_bearer(plane.token("viewer")) as reader:
        assert problem(reader.post(ROLLBACK, json={"epoch": 2, "dry_run": True})) == (403, "forbidden")


def test_incompatible_version_is_refused_before_the_stop(plane: Plane) -> None:
    driver = running(plane, epochs=1, configuration={"max_parallelism": 64})
    for request in ({"dry_run": True}, {}):
        answer = plane.client.post(ROLLBACK, json={"epoch": 1, **request})
        assert problem(answer) == (422, "incompatible-state")
        assert "128 key groups, version 1 has 64" in answer.json()["detail"]
    assert plane.get("/v1/applications/flights")["state"] == "running"
    driver.epoch()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_in_tables_stay_and_cannot_be_moved_aside(plane: Plane, kind: str) -> None:
    driver = writing_tables(plane, kind, sinks={"out": f"{kind}:/out"})
    (sink,) = plan(plane, epoch=1)["sinks"]
    assert (sink["kind"], sink["rule"], sink["epochs"], sink["rows"]) == (kind, "new-marker", 2, 20)
    assert "rows of these epochs stay in the table" in sink["explanation"]
    refused = plane.client.post(ROLLBACK, json={"epoch": 1, "move_aside": True, "dry_run": True})
    assert problem(refused) == (422, "invalid-option")
    assert f"Sink 'out' ({kind}) cannot move epochs aside" in refused.json()["detail"]
    assert driver.head is not None and driver.head.epoch == 3


def writing_tables(plane: Plane, kind: str, **content: Any) -> Driver:
    """An application whose sink ``out`` has written three epochs, and which is stopped."""
    plane.application(artifact=plane.artifact(**content), parameters={})
    driver = plane.driver()
    driver.sink_kind = kind
    driver.running()
    for _ in range(3):
        driver.epoch(sinks={"out": 10})
    stop(plane, driver)
    return driver


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("delta", "version 2 (`RESTORE TABLE delta.`/out` TO VERSION AS OF 2`) before the application starts again"),
        ("iceberg", "snapshot 2 (`CALL catalog.system.rollback_to_snapshot('out', 2)`) before the application starts"),
    ],
)
def test_the_plan_names_the_version_before_the_discarded_epochs(plane: Plane, kind: str, said: str) -> None:
    writing_tables(plane, kind, sinks={"out": f"{kind}:/out"})
    (sink,) = plan(plane, epoch=1)["sinks"]
    assert sink["restore_to"] == "2"
    assert said in sink["restore"] and "roll the application back, and restore" in sink["restore"]


def test_a_running_application_has_to_stop_before_its_table_is_restored(plane: Plane) -> None:
    plane.application(artifact=plane.artifact(sinks={"out": "delta:/out"}), parameters={})
    driver = plane.driver()
    driver.sink_kind = "delta"
    driver.running()
    for _ in range(2):
        driver.epoch(sinks={"out": 10})
    assert "stop the application, roll it back, and restore" in plan(plane, epoch=1)["sinks"][0]["restore"]


def test_the_plan_says_that_one_commit_has_epochs_of_both_sides(plane: Plane) -> None:
    reason = "no version of the table has epoch 1 without epoch 2: version 7 commits both"
    writing_tables(plane, "delta", sinks={"out": "delta:/out"}, shared=reason)
    (sink,) = plan(plane, epoch=1)["sinks"]
    assert sink["restore_to"] is None
    assert sink["restore"] == f"The table cannot be restored to a version before these epochs: {reason}."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            {"sinks": {"out": "delta:/out"}, "unreadable": "the store refuses the credentials."},
            "refuses the credentials",
        ),
        ({"sinks": {"other": "delta:/other"}}, "version 1 has no such sink"),
        ({"sinks": {"out": "delta:/elsewhere"}}, "version 1 has no such sink"),
    ],
)
def test_a_table_that_cannot_be_read_does_not_prevent_the_plan(
    plane: Plane, content: dict[str, Any], reason: str
) -> None:
    writing_tables(plane, "delta", **content)
    (sink,) = plan(plane, epoch=1)["sinks"]
    assert sink["restore_to"] is None
    assert f"could not be determined: {reason}" in sink["restore"].replace("the store ", "")
    assert "`DESCRIBE HISTORY` shows the versions" in sink["restore"]


def test_other_sinks_have_no_version(plane: Plane) -> None:
    driver = running(plane, epochs=2)
    driver.epoch(sinks={"out": 3})
    (sink,) = plan(plane, epoch=2)["sinks"]
    assert (sink["restore_to"], sink["restore"]) == (None, None)
