"""Sink targets: each belongs to one application."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def test_target_of_another_application_is_refused(plane: Plane) -> None:
    plane.application("flights", start=False)
    body = {"name": "copy", "artifact": plane.artifact(), "parameters": {"out": "/data/flights"}, "start": False}
    submit = plane.client.post("/v1/applications", json=body)
    plane.application("trains", start=False)
    upgrade = plane.client.post("/v1/applications/trains/versions", json={"parameters": {"out": "/data/flights"}})
    for answer in (submit, upgrade):
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:shared-sink-targets")
        assert "'out' to files:/data/flights, as 'flights' does" in answer.json()["detail"]
    assert [item["name"] for item in plane.get("/v1/applications")["items"]] == ["flights", "trains"]

    # An application keeps its target while another version starts, and releases a target that its versions no longer
    # use.
    plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 3})
    plane.post("/v1/applications/flights/versions", 201, parameters={"out": "/data/elsewhere"})
    assert plane.client.post("/v1/applications", json=body).status_code == 201
    assert plane.client.delete("/v1/applications/flights").status_code == 204
    plane.application("again", parameters={"out": "/data/elsewhere"}, start=False)


def test_console_targets_are_shared_and_shadows_take_no_target(plane: Plane) -> None:
    console = plane.artifact({"out": "console:"})
    for name in ("one", "two"):
        plane.application(name, artifact=console, start=False)
    plane.application("flights")
    driver = plane.driver("flights")
    driver.running()
    driver.epoch()
    plane.post("/v1/applications/flights/fork", 201, name="shadow", shadow=True, start=False)
    plane.post("/v1/applications/flights/stop")
    driver.stop()
    assert plane.client.delete("/v1/applications/flights").status_code == 204
    plane.application("again", parameters={"out": "/data/flights"}, start=False)


def test_running_version_keeps_its_target_until_the_next_one_runs(plane: Plane) -> None:
    plane.application("flights")
    driver = plane.driver("flights")
    driver.running()
    driver.epoch()
    plane.post("/v1/applications/flights/versions", 201, parameters={"out": "/data/elsewhere"})
    for target in ("/data/flights", "/data/elsewhere"):
        body = {"name": "copy", "artifact": plane.artifact(), "parameters": {"out": target}}
        assert plane.client.post("/v1/applications", json=body).status_code == 422
