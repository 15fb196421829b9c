"""A place that a sink writes to belongs to one application."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def test_a_place_that_another_application_writes_to_is_refused(plane: Plane) -> None:
    plane.application("flights", start=False)
    body = {"name": "copy", "artifact": plane.artifact(), "parameters": {"out": "/data/flights"}, "start": False}
    submit = plane.client.post("/v1/applications", json=body)
    plane.application("trains", start=False)
    upgrade = plane.client.post("/v1/applications/trains/versions", json={"parameters": {"out": "/data/flights"}})
    for answer in (submit, upgrade):
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:shared-sink-targets")
        assert "'out' to files:/data/flights, as 'flights' does" in answer.json()["detail"]
    assert [item["name"] for item in plane.get("/v1/applications")["items"]] == ["flights", "trains"]

    # Its own place stays its own, also while another version is on its way; one that moved away has left it.
    plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 3})
    plane.post("/v1/applications/flights/versions", 201, parameters={"out": "/data/elsewhere"})
    assert plane.client.post("/v1/applications", json=body).status_code == 201
    assert plane.client.delete("/v1/applications/flights").status_code == 204
    plane.application("again", parameters={"out": "/data/elsewhere"}, start=False)


def test_places_are_shared_by_consoles_and_not_taken_by_shadows(plane: Plane) -> None:
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


def test_what_still_runs_keeps_its_place_until_its_successor_is_there(plane: Plane) -> None:
    plane.application("flights")
    driver = plane.driver("flights")
    driver.running()
    driver.epoch()
    plane.post("/v1/applications/flights/versions", 201, parameters={"out": "/data/elsewhere"})
    for place in ("/data/flights", "/data/elsewhere"):
        body = {"name": "copy", "artifact": plane.artifact(), "parameters": {"out": place}}
        assert plane.client.post("/v1/applications", json=body).status_code == 422
