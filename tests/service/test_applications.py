"""Life cycle of an application over HTTP; the driver is a client with its own token."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal

import pytest

from epochal.cli.main import main
from epochal.contracts.catalog import DriverStatus, Failure
from epochal.driver.heartbeat import HeartbeatingCatalog

if TYPE_CHECKING:
    from tests.service.conftest import Plane

FAILURE = Failure(type="author-error", message="division by zero", step="E2", traceback="flights.py, line 3")


def operation(plane: Plane, id: str) -> dict[str, object]:
    return dict(plane.get(f"/v1/operations/{id}"))


def test_a_created_application_starts_and_runs_once_its_driver_reports(plane: Plane) -> None:
    created = plane.application()
    assert (created["state"], created["version"], created["head"], created["parent"]) == ("starting", 1, None, None)
    assert created["configuration"]["parallelism"] == 2
    (starting,) = plane.get("/v1/operations", application="flights")["items"]
    assert (starting["kind"], starting["state"], starting["progress"]) == ("start", "running", "starting")
    assert created["execution"] in plane.supervisor.woken

    driver = plane.driver()
    driver.running()
    driver.epochs(2)

    done = operation(plane, starting["id"])
    assert (done["state"], done["result"]) == ("succeeded", {"execution": created["execution"], "attempt": 1})
    now = plane.get("/v1/applications/flights")
    assert (now["state"], now["head"]["epoch"], now["head"]["branch"]) == ("running", 2, created["branch"])
    assert plane.get("/v1/applications")["items"] == [now]


def test_an_application_can_be_created_without_a_start(plane: Plane) -> None:
    assert plane.application(start=False)["state"] == "created"
    assert plane.supervisor.woken == []

    started = plane.post("/v1/applications/flights/start")
    assert started["kind"] == "start"
    assert plane.get("/v1/applications/flights")["state"] == "starting"


@pytest.mark.parametrize(
    ("change", "status", "slug"),
    [
        ({"artifact": "f" * 64}, 422, "invalid-artifact"),
        ({"artifact": "x"}, 422, "invalid-request"),
        ({"name": "Flights!"}, 422, "invalid-request"),
        ({"colour": "red"}, 422, "invalid-request"),
        ({"configuration": {"parallelism": 200}}, 422, "invalid-request"),
        ({"configuration": {"paralelism": 2}}, 422, "invalid-request"),
        ({"configuration": {"state_backend": "papyrus"}}, 422, "invalid-option"),
        ({"configuration": {"spark": {"java.home": "/"}}}, 422, "invalid-option"),
    ],
)
def test_invalid_applications_are_refused(plane: Plane, change: dict[str, object], status: int, slug: str) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}, **change}
    answer = plane.client.post("/v1/applications", json=body)

    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:epochal:problem:{slug}")
    assert plane.get("/v1/applications")["items"] == []


def test_errors_of_the_builder_reach_the_caller(plane: Plane) -> None:
    wrong = plane.artifact(wrong="Operator 'delays': there is no column 'dely'; did you mean 'delay'?")
    answer = plane.client.post("/v1/applications", json={"name": "flights", "artifact": wrong})

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:invalid-pipeline")
    assert "'delays'" in answer.json()["detail"]


def test_a_taken_name_is_refused(plane: Plane) -> None:
    plane.application(start=False)
    answer = plane.client.post(
        "/v1/applications", json={"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/y"}}
    )

    assert (answer.status_code, answer.json()["type"]) == (409, "urn:epochal:problem:name-taken")


def test_a_stop_ends_the_execution_and_reports_its_last_epoch(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epochs(3)
    stopping = plane.post("/v1/applications/flights/stop", savepoint="done")
    assert plane.get("/v1/applications/flights")["state"] == "stopping"

    (directive,) = driver.running()
    assert directive.kind == "stop"
    driver.catalog.complete(directive.id, driver.head)
    driver.catalog.complete(directive.id, driver.head)
    assert operation(plane, stopping["id"])["state"] == "running"
    driver.catalog.finish(None)

    done = operation(plane, stopping["id"])
    assert done["state"] == "succeeded"
    assert done["result"] == {"branch": driver.point.branch, "epoch": 3, "savepoint": "done"}
    assert plane.get("/v1/applications/flights")["state"] == "stopped"
    assert plane.get("/v1/applications/flights/savepoints/done")["epoch"] == 3


def test_stopping_an_application_that_does_not_run_is_a_conflict(plane: Plane) -> None:
    plane.application(start=False)
    assert plane.client.post("/v1/applications/flights/stop").status_code == 409

    plane.post("/v1/applications/flights/start")
    plane.post("/v1/applications/flights/stop")
    assert plane.client.post("/v1/applications/flights/stop").status_code == 409


def test_a_start_fails_when_a_stop_precedes_its_first_run(plane: Plane) -> None:
    plane.application()
    (starting,) = plane.get("/v1/operations")["items"]
    stopping = plane.post("/v1/applications/flights/stop")
    execution = plane.get("/v1/applications/flights")["execution"]
    plane.control.ledger.execution_ended(execution, "stopped", None)

    assert operation(plane, starting["id"])["state"] == "failed"
    assert operation(plane, stopping["id"])["result"]["epoch"] is None  # type: ignore[index]


def test_a_second_start_is_a_conflict(plane: Plane) -> None:
    plane.application()
    answer = plane.client.post("/v1/applications/flights/start")

    assert (answer.status_code, answer.json()["type"]) == (409, "urn:epochal:problem:conflict")


def test_a_restart_begins_a_new_execution_with_the_next_attempt(plane: Plane) -> None:
    first = plane.application()["execution"]
    driver = plane.driver()
    driver.running()
    driver.epochs(2)
    restarting = plane.post("/v1/applications/flights/restart")
    driver.stop()

    application = plane.get("/v1/applications/flights")
    assert application["state"] == "starting" and application["execution"] != first
    assert operation(plane, restarting["id"])["state"] == "running"
    successor = plane.driver()
    successor.running()

    assert successor.attempt == 2
    assert successor.point.head is not None and successor.point.head.epoch == 2
    done = operation(plane, restarting["id"])
    assert done["result"] == {"execution": application["execution"], "attempt": 2}
    executions = plane.get("/v1/applications/flights/executions")["items"]
    assert [item["state"] for item in executions] == ["running", "stopped"]


def test_a_restart_of_a_stopped_application_starts_it(plane: Plane) -> None:
    plane.application(start=False)
    restarting = plane.post("/v1/applications/flights/restart")
    plane.driver().running()

    assert operation(plane, restarting["id"])["state"] == "succeeded"


def test_a_failed_attempt_is_listed_and_the_next_one_continues(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    driver.catalog.open_epoch(2, driver.head_key)
    driver.catalog.abort_epoch(2, FAILURE)
    driver.catalog.finish(FAILURE)

    application = plane.get("/v1/applications/flights")
    assert application["state"] == "starting" and "division by zero" in application["detail"]
    execution = plane.get(f"/v1/applications/flights/executions/{driver.execution}")
    assert execution["attempts"][0]["failure"]["traceback"] == "flights.py, line 3"
    assert plane.get("/v1/applications/flights/epochs/2")["failure"]["message"] == "division by zero"
    successor = plane.driver()
    assert (successor.attempt, successor.point.next_epoch) == (2, 3)

    successor.catalog.finish(FAILURE)
    plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)
    plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)
    failed = plane.get("/v1/applications/flights")
    assert (failed["state"], failed["failure"]["type"]) == ("failed", "author-error")


def test_a_failed_start_reports_the_failure_of_the_driver(plane: Plane) -> None:
    plane.application()
    (starting,) = plane.get("/v1/operations")["items"]
    driver = plane.driver()
    driver.catalog.finish(FAILURE)
    plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)

    failed = operation(plane, starting["id"])
    assert failed["state"] == "failed"
    assert failed["error"]["type"] == "urn:epochal:problem:author-error"  # type: ignore[index]
    assert failed["error"]["failure"]["traceback"] == "flights.py, line 3"  # type: ignore[index]


def test_a_version_is_used_by_the_next_start(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    plane.post("/v1/applications/flights/stop")
    driver.stop()

    version = plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 4})
    assert (version["number"], version["configuration"]["parallelism"]) == (2, 4)
    assert version["parameters"] == {"out": "/data/flights"}
    assert version["graph"]["sinks"] == {"out": "files:/data/flights"}
    plane.post("/v1/applications/flights/start")
    successor = plane.driver()
    successor.running()
    successor.epoch()

    assert plane.control.ledger.plan(successor.execution).configuration.parallelism == 4
    assert [item["number"] for item in plane.get("/v1/applications/flights/versions")["items"]] == [2, 1]
    newest = plane.get("/v1/applications/flights/lineage")["nodes"][0]
    assert newest["changes"] == [{"kind": "version", "detail": {"from": 1, "to": 2}}]


def test_a_version_cannot_change_the_number_of_key_groups(plane: Plane) -> None:
    plane.application(start=False)
    answer = plane.client.post("/v1/applications/flights/versions", json={"configuration": {"max_parallelism": 64}})

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:invalid-option")


def test_a_deletion_needs_a_stopped_application_and_frees_the_name(plane: Plane) -> None:
    plane.application()
    assert plane.client.delete("/v1/applications/flights").status_code == 409
    execution = plane.get("/v1/applications/flights")["execution"]
    plane.control.ledger.execution_ended(execution, "stopped", None)

    assert plane.client.delete("/v1/applications/flights").status_code == 204
    assert plane.client.get("/v1/applications/flights").status_code == 404
    assert plane.application(start=False)["state"] == "created"


def test_unknown_resources_are_not_found(plane: Plane) -> None:
    plane.application(start=False)
    for path in (
        "/v1/applications/unknown",
        "/v1/applications/Not-A-Name",
        "/v1/applications/unknown/epochs",
        "/v1/applications/unknown/lineage",
        "/v1/applications/flights/executions/00000000000000000000000000000000",
        "/v1/applications/flights/epochs/7",
        "/v1/applications/flights/snapshots/7",
        "/v1/applications/flights/savepoints/none",
        "/v1/operations/none",
        "/v1/artifacts/none",
    ):
        answer = plane.client.get(path)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:epochal:problem:not-found"), path


def test_each_change_of_state_publishes_an_event(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    plane.post("/v1/applications/flights/stop")
    driver.stop()

    kinds = [(event.kind, event.data["state"]) for event in plane.events if event.kind != "savepoint"]
    assert kinds == [
        ("operation", "running"),
        ("execution", "starting"),
        ("execution", "starting"),
        ("execution", "running"),
        ("operation", "succeeded"),
        ("epoch", "started"),
        ("epoch", "prepared"),
        ("epoch", "committed"),
        ("operation", "running"),
        ("execution", "stopping"),
        ("execution", "stopped"),
        ("operation", "succeeded"),
    ]


@pytest.mark.parametrize("phase", ["starting", "waiting"])
def test_a_driver_that_does_not_run_yet_stops_without_a_directive(
    plane: Plane, phase: Literal["starting", "waiting"]
) -> None:
    plane.application()
    driver, stopped = plane.driver(), threading.Event()
    branch = driver.point.branch
    heartbeats = HeartbeatingCatalog(driver.catalog, lambda _error: None, stopped.set, interval_seconds=0.02)
    heartbeats.heartbeat(DriverStatus(phase=phase))
    heartbeats.start()
    requested = plane.post("/v1/applications/flights/stop")
    assert stopped.wait(30)
    assert plane.get("/v1/applications/flights")["state"] == "stopped"
    ended = operation(plane, requested["id"])
    assert (ended["state"], ended["result"]) == ("succeeded", {"branch": branch, "epoch": None, "savepoint": None})


def test_a_running_driver_carries_out_a_stop_itself(plane: Plane) -> None:
    plane.application()
    driver, stopped = plane.driver(), threading.Event()
    heartbeats = HeartbeatingCatalog(driver.catalog, lambda _error: None, stopped.set, interval_seconds=0.02)
    heartbeats.heartbeat(DriverStatus(phase="running"))
    heartbeats.start()
    plane.post("/v1/applications/flights/stop")
    while not (directives := heartbeats.heartbeat(DriverStatus(phase="waiting"))):
        time.sleep(0.02)
    assert [directive.kind for directive in directives] == ["stop"]
    assert not stopped.is_set()
    heartbeats.stop()


def test_epochs_list_the_records_in_flight_of_each_loop(
    plane: Plane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.application(artifact=plane.artifact(loops=["messages", "shares"]))
    driver = plane.driver()
    driver.running()
    driver.epoch(in_flight={"messages": 12, "shares": 0})
    driver.epoch(in_flight={"messages": 4, "shares": 1200}, commit=False)
    driver.catalog.open_epoch(3, driver.head_key)
    listed = {item["epoch"]: item["in_flight"] for item in plane.get("/v1/applications/flights/epochs")["items"]}
    assert listed == {1: {"messages": 12, "shares": 0}, 2: {"messages": 4, "shares": 1200}, 3: None}
    assert plane.get("/v1/applications/flights/epochs/1")["in_flight"] == {"messages": 12, "shares": 0}
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.admin_token)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit, match="0"):
        main(["epochs", "flights"])
    assert "IN FLIGHT" in (shown := capsys.readouterr().out) and "1,204" in shown
    with pytest.raises(SystemExit, match="0"):
        main(["show", "flights"])
    assert "in flight      messages 12, shares 0" in capsys.readouterr().out
