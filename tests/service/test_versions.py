"""Upgrades of a running application with a scripted driver: when the catalog switches the version."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.contracts.catalog import Change, EpochCounts, EpochTerms, Failure
from epochal.state.table import StateKind, StateScope
from tests.service.conftest import Driver, Plane
from tests.service.lookups import table


@pytest.fixture
def driver(plane: Plane) -> Driver:
    """The driver of an application that has run an epoch."""
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    return driver


def prepare_epoch_of(driver: Driver, version: int) -> int:
    """Prepare an epoch of another version."""
    number, parent = driver.point.next_epoch + 1, driver.head_key
    driver.catalog.open_epoch(number, parent)
    reference = driver.manifest(number)
    terms = EpochTerms(version=version, changes=(Change(kind="rescale", detail={"parallelism": [2, 4]}),))
    driver.catalog.prepare_epoch(number, parent, reference, EpochCounts(), terms)
    driver.head = reference
    return number


def operation(plane: Plane, id: str) -> dict[str, Any]:
    return dict(plane.get(f"/v1/operations/{id}"))


def test_driver_receives_the_new_version(plane: Plane, driver: Driver) -> None:
    version = plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 3}, message="more")
    [directive] = driver.running()
    assert directive.kind == "reconfigure"
    order = directive.arguments
    assert (order["version"], order["message"], order["configuration"]["parallelism"]) == (2, "more", 3)
    assert order["filename"].endswith(".py") and order["artifact"] == version["artifact"]
    assert plane.get("/v1/applications/flights")["version"] == 1
    assert operation(plane, version["operation"])["state"] == "running"


def test_first_epoch_of_a_version_makes_it_current(plane: Plane, driver: Driver) -> None:
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    [directive] = driver.running()
    number = prepare_epoch_of(driver, 2)
    assert plane.get("/v1/applications/flights")["version"] == 2
    assert plane.control.ledger.plan(driver.execution).configuration.parallelism == 4
    driver.catalog.complete(directive.id, driver.head)
    done = operation(plane, rescale["id"])
    assert (done["state"], done["result"]) == ("succeeded", {"version": 2, "epoch": number})
    epoch = plane.get(f"/v1/applications/flights/epochs/{number}")
    assert epoch["version"] == 2 and epoch["changes"][0]["kind"] == "rescale"


def test_one_operator_is_rescaled(plane: Plane) -> None:
    delays = {"id": 1, "name": "delays", "type": "aggregate", "description": {"parallelism": 16}}
    plane.application(artifact=plane.artifact(nodes=[delays]))
    driver = plane.driver()
    driver.running()
    driver.epoch()
    rescale = plane.post("/v1/applications/flights/rescale", parallelisms={"delays": 3})
    [directive] = driver.running()
    configuration = directive.arguments["configuration"]
    assert (configuration["parallelism"], configuration["parallelisms"]) == (2, {"delays": 3})
    prepare_epoch_of(driver, 2)
    driver.catalog.complete(directive.id, driver.head)
    assert operation(plane, rescale["id"])["state"] == "succeeded"
    assert plane.control.ledger.plan(driver.execution).configuration.parallelisms == {"delays": 3}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"parallelisms": {"delay": 3}}, "no operator 'delay'. Did you mean 'delays'?"),
        ({"parallelisms": {"delays": 129}}, "parallelisms.delays 129 is above max_parallelism 128"),
        ({"parallelisms": {"delays": 0}}, "greater than or equal to 1"),
        ({"parallelisms": {"delays": "many"}}, "parallelisms.delays"),
        ({}, "give parallelism, parallelisms, or both"),
    ],
)
def test_wrong_numbers_of_an_operator_are_refused(plane: Plane, body: dict[str, Any], message: str) -> None:
    plane.application(artifact=plane.artifact(nodes=[{"id": 1, "name": "delays", "type": "aggregate"}]))
    plane.driver().running()
    answer = plane.client.post("/v1/applications/flights/rescale", json=body)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"] or message in answer.text
    assert plane.get("/v1/applications/flights")["version"] == 1


def test_partial_state_without_a_merge_refuses_fewer_subtasks(plane: Plane) -> None:
    """Refused before anything stops, in every call that reduces the number of subtasks."""
    weights = table("weights.sums", StateKind.VALUE, "_group int", "n bigint", scope=StateScope.PARTIAL)
    artifact = plane.artifact(tables=[weights.model_dump(mode="json")])
    plane.application(artifact=artifact, configuration={"parallelism": 2})
    driver = plane.driver()
    driver.running()
    driver.epoch()
    fewer = {"configuration": {"parallelism": 1}}
    for path, body in (
        ("flights/rescale", {"parallelism": 1}),
        ("flights/versions", fewer),
        ("flights/fork", {"name": "fork", "parameters": {"out": "/fork"}, **fewer}),
    ):
        refused = plane.post(f"/v1/applications/{path}", 422, **body)
        assert refused["type"] == "urn:epochal:problem:incompatible-state"
        assert "State table 'weights.sums' is partial state with 2 instances" in refused["detail"], path
    assert driver.running() == [] and plane.get("/v1/applications/flights")["version"] == 1
    plane.post("/v1/applications/flights/rescale", parallelism=3)
    assert [directive.kind for directive in driver.running()] == ["reconfigure"]


def test_failed_version_is_never_used(plane: Plane, driver: Driver) -> None:
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    [directive] = driver.running()
    driver.catalog.complete(directive.id, None, Failure(type="author-error", message="it raises"))
    done = operation(plane, rescale["id"])
    assert done["state"] == "failed" and "it raises" in done["error"]["detail"]
    newest = plane.get("/v1/applications/flights/versions")["items"][0]
    assert newest["number"] == 2 and "it raises" in newest["failure"]["message"]
    plane.post("/v1/applications/flights/stop")
    driver.stop()
    plane.post("/v1/applications/flights/start")
    successor = plane.driver()
    successor.running()
    assert plane.control.ledger.plan(successor.execution).version == 1
    assert plane.post("/v1/applications/flights/versions", 201, parameters={"out": "/y"})["number"] == 3


def test_driver_lost_before_the_first_epoch_keeps_the_old_version(plane: Plane, driver: Driver) -> None:
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    driver.running()
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", Failure(type="x", message="killed"))
    successor = plane.driver()
    assert successor.running() == []
    failed = operation(plane, rescale["id"])
    assert failed["state"] == "failed" and "version 1 continues" in failed["error"]["detail"]
    assert plane.control.ledger.plan(successor.execution).version == 1


def test_driver_lost_after_the_first_epoch_keeps_the_new_version(plane: Plane, driver: Driver) -> None:
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    driver.running()
    prepare_epoch_of(driver, 2)
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", Failure(type="x", message="killed"))
    assert plane.control.ledger.plan(driver.execution).version == 2
    successor = plane.driver()
    [directive] = successor.running()
    successor.catalog.complete(directive.id, successor.head)
    assert operation(plane, rescale["id"])["state"] == "succeeded"


def test_upgrade_between_two_attempts_is_not_lost(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", Failure(type="x", message="killed"))
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    successor = plane.driver()
    assert [item.kind for item in successor.running()] == ["reconfigure"]
    assert operation(plane, rescale["id"])["state"] == "running"


def test_stop_fails_an_upgrade_without_an_epoch(plane: Plane, driver: Driver) -> None:
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    plane.post("/v1/applications/flights/stop")
    driver.catalog.finish(None)
    assert operation(plane, rescale["id"])["state"] == "failed"
    assert plane.get("/v1/applications/flights")["version"] == 1


def test_second_upgrade_is_refused_and_names_the_first(plane: Plane, driver: Driver) -> None:
    rescale = plane.post("/v1/applications/flights/rescale", parallelism=4)
    for path, body in (("rescale", {"parallelism": 3}), ("versions", {"parameters": {"out": "/y"}})):
        answer = plane.client.post(f"/v1/applications/flights/{path}", json=body)
        assert answer.status_code == 409 and f"rescale {rescale['id']}" in answer.json()["detail"]


def test_spark_resources_restart_the_application(plane: Plane, driver: Driver) -> None:
    version = plane.post("/v1/applications/flights/versions", 201, configuration={"master": "local[3]"})
    assert [item.kind for item in driver.running()] == ["stop"]
    driver.stop()
    successor = plane.driver()
    successor.running()
    assert plane.control.ledger.plan(successor.execution).configuration.master == "local[3]"
    assert operation(plane, version["operation"])["state"] == "succeeded"


@pytest.mark.parametrize("parallelism", [0, -1, 129, 2.5, "many", None])
def test_invalid_parallelism_is_refused(plane: Plane, driver: Driver, parallelism: object) -> None:
    answer = plane.client.post("/v1/applications/flights/rescale", json={"parallelism": parallelism})
    assert answer.status_code == 422, answer.text
    assert "parallelism" in answer.text
    assert plane.get("/v1/applications/flights")["version"] == 1
