"""Pins, tags and messages on snapshots, over a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

SNAPSHOTS = "/v1/applications/flights/snapshots"


def running(plane: Plane, epochs: int, **configuration: object) -> Driver:
    plane.application(configuration=configuration)
    driver = plane.driver()
    driver.epochs(epochs)
    return driver


def test_a_pinned_snapshot_does_not_expire_until_it_is_unpinned(plane: Plane) -> None:
    driver = running(plane, 2, retained_epochs=2)
    pinned = plane.post(f"{SNAPSHOTS}/1/pin", 201, message="the good one")
    assert (pinned["epoch"], pinned["message"], pinned["created_by"]) == (1, "the good one", "admin")
    driver.epochs(3)

    assert plane.get(f"{SNAPSHOTS}/1")["annotations"] == {"pin": pinned, "tags": [], "message": None}
    assert plane.get(f"{SNAPSHOTS}/1/pin") == pinned
    assert plane.get("/v1/applications/flights/pins")["items"] == [pinned]
    assert plane.client.get(f"{SNAPSHOTS}/2").status_code == 410
    assert plane.client.delete(f"{SNAPSHOTS}/1/pin").status_code == 204
    assert plane.client.delete(f"{SNAPSHOTS}/1/pin").status_code == 404
    assert plane.client.get(f"{SNAPSHOTS}/1").status_code == 410


def test_an_expired_snapshot_cannot_be_pinned_or_tagged(plane: Plane) -> None:
    running(plane, 4, retained_epochs=2)
    for path, body in (("pin", {}), ("tags", {"name": "late"})):
        refused = plane.client.post(f"{SNAPSHOTS}/1/{path}", json=body)
        assert (refused.status_code, refused.json()["type"]) == (410, "urn:epochal:problem:snapshot-expired")
        assert "the latest 2 committed epochs are retained" in refused.json()["detail"]
    assert plane.post(f"{SNAPSHOTS}/1/message", 201, message="expired")["epoch"] == 1


def test_snapshots_expire_by_age_except_the_latest(plane: Plane) -> None:
    running(plane, 3, retained_seconds=0.001)
    assert plane.get(f"{SNAPSHOTS}/3")["epoch"] == 3
    expired = plane.client.get(f"{SNAPSHOTS}/2")
    assert expired.status_code == 410
    assert "none committed before" in expired.json()["detail"]


def test_a_tag_moves_only_when_requested(plane: Plane) -> None:
    running(plane, 3)
    first = plane.post(f"{SNAPSHOTS}/2/tags", 201, name="release", message="1.0")
    again = plane.post(f"{SNAPSHOTS}/2/tags", 201, name="release", message="1.0, repeated")
    assert (first["epoch"], again["message"]) == (2, "1.0, repeated")
    taken = plane.client.post(f"{SNAPSHOTS}/3/tags", json={"name": "release"})
    assert (taken.status_code, taken.json()["type"]) == (409, "urn:epochal:problem:name-taken")
    assert plane.client.post(f"{SNAPSHOTS}/3/tags", json={"name": "Not A Name"}).status_code == 422

    moved = plane.post(f"{SNAPSHOTS}/3/tags", 201, name="release", move=True)
    assert plane.get("/v1/applications/flights/tags")["items"] == [moved]
    assert plane.get(f"{SNAPSHOTS}/2/tags")["items"] == []
    assert plane.get(f"{SNAPSHOTS}/3/tags")["items"] == [moved]
    assert plane.client.delete(f"{SNAPSHOTS}/2/tags/release").status_code == 404
    assert plane.client.delete(f"{SNAPSHOTS}/3/tags/release").status_code == 204
    assert plane.get("/v1/applications/flights/tags")["items"] == []


def test_a_message_replaces_the_previous_one(plane: Plane) -> None:
    running(plane, 1)
    assert plane.client.get(f"{SNAPSHOTS}/1/message").status_code == 404
    plane.post(f"{SNAPSHOTS}/1/message", 201, message="looks odd")
    plane.post(f"{SNAPSHOTS}/1/message", 201, message="it was the input")
    assert plane.get(f"{SNAPSHOTS}/1/message")["message"] == "it was the input"
    assert plane.client.delete(f"{SNAPSHOTS}/1/message").status_code == 204
    assert plane.client.get(f"{SNAPSHOTS}/1/message").status_code == 404


def test_annotations_are_audited_and_need_an_operator(plane: Plane) -> None:
    running(plane, 1)
    with plane.as_bearer(plane.token("viewer")) as reader:
        assert reader.post(f"{SNAPSHOTS}/1/pin", json={}).status_code == 403
    plane.post(f"{SNAPSHOTS}/1/pin", 201)
    audited = [(entry["token"], entry["target"], entry["outcome"]) for entry in plane.get("/v1/audit")["items"]]
    assert ("admin", f"{SNAPSHOTS}/1/pin", 201) in audited
    assert ("a-viewer", f"{SNAPSHOTS}/1/pin", 403) in audited


def test_unknown_epochs_and_fields_are_refused(plane: Plane) -> None:
    running(plane, 1)
    assert plane.client.post(f"{SNAPSHOTS}/7/pin", json={}).status_code == 404
    assert plane.client.post("/v1/applications/unknown/snapshots/1/pin", json={}).status_code == 404
    assert plane.client.post(f"{SNAPSHOTS}/1/pin", json={"mesage": "x"}).status_code == 422
    assert plane.client.get(f"{SNAPSHOTS}/1/pin").status_code == 404
