"""Epochs, snapshots, savepoints, forks and lineage over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.contracts.catalog import Failure
from epochal.contracts.stream_kind import Kind, StreamKind
from epochal.pipeline.description import GraphDescription, NodeDescription
from epochal.service.commands.fork import _with_what_was_analysed
from epochal.snapshots.immutable_cache import SizedCache
from epochal.snapshots.manifest import Manifest

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def running(plane: Plane, name: str = "flights", epochs: int = 0, **more: Any) -> Driver:
    plane.application(name, **more)
    driver = plane.driver(name)
    driver.running()
    driver.epochs(epochs)
    return driver


def stop(plane: Plane, driver: Driver, name: str = "flights") -> None:
    plane.post(f"/v1/applications/{name}/stop")
    driver.stop()


def numbers(page: dict[str, Any]) -> list[int]:
    return [item["epoch"] for item in page["items"]]


def test_epochs_are_listed_newest_first_and_by_state(plane: Plane) -> None:
    driver = running(plane, epochs=3)
    driver.epoch(commit=False)

    assert numbers(plane.get("/v1/applications/flights/epochs")) == [4, 3, 2, 1]
    assert numbers(plane.get("/v1/applications/flights/epochs", state="prepared")) == [4]
    assert numbers(plane.get("/v1/applications/flights/snapshots", limit=2)) == [4, 3]
    one = plane.get("/v1/applications/flights/epochs/3")
    assert (one["state"], one["rows_in"], one["parent"]) == ("committed", 3, {"branch": one["branch"], "epoch": 2})


def test_snapshot_contains_its_manifest_and_its_reference(plane: Plane) -> None:
    driver = running(plane, epochs=2)
    answer = plane.get("/v1/applications/flights/snapshots/2")
    reference, annotations = answer.pop("reference"), answer.pop("annotations")

    assert annotations == {"pin": None, "tags": [], "message": None}
    assert driver.head is not None and reference == driver.head.model_dump(mode="json")
    manifest = Manifest.model_validate(answer)
    assert (manifest.epoch, manifest.application, manifest.parent and manifest.parent.epoch) == (2, "flights", 1)


def test_prepared_epoch_is_not_a_readable_snapshot(plane: Plane) -> None:
    running(plane).epoch(commit=False)

    assert plane.client.get("/v1/applications/flights/snapshots/1").status_code == 404


def test_missing_manifest_is_named(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.snapshots.store._manifests", SizedCache(0))
    driver = running(plane, epochs=1)
    assert driver.head is not None
    (Path(plane.settings.store_url) / driver.head.path).unlink()
    answer = plane.client.get("/v1/applications/flights/snapshots/1")

    assert answer.json()["type"] == "urn:epochal:problem:file-missing"
    assert driver.head.path in answer.json()["detail"]


def test_snapshots_expire_unless_they_are_referenced(plane: Plane) -> None:
    driver = running(plane, configuration={"retained_epochs": 3})
    driver.epoch()
    making = plane.post("/v1/applications/flights/savepoints", name="kept")
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, driver.head)
    driver.epoch()
    plane.post("/v1/applications/flights/fork", 201, name="copy", parameters={"out": "/data/copy"}, epoch=2)
    driver.epochs(4)

    assert plane.get(f"/v1/operations/{making['id']}")["state"] == "succeeded"
    assert numbers(plane.get("/v1/applications/flights/epochs")) == [6, 5, 4, 3, 2, 1]
    expired = plane.client.get("/v1/applications/flights/snapshots/3")
    assert (expired.status_code, expired.json()["type"]) == (410, "urn:epochal:problem:snapshot-expired")
    for held in (1, 2, 4, 5, 6):
        assert plane.get(f"/v1/applications/flights/snapshots/{held}")["epoch"] == held

    assert plane.client.delete("/v1/applications/flights/savepoints/kept").status_code == 204
    assert plane.client.get("/v1/applications/flights/snapshots/1").status_code == 410


def test_savepoint_of_a_running_application_is_made_by_its_driver(plane: Plane) -> None:
    driver = running(plane, epochs=2)
    making = plane.post("/v1/applications/flights/savepoints", name="noon", message="before the upgrade")
    assert making["state"] == "running"
    (directive,) = driver.running()
    assert (directive.kind, directive.arguments) == ("savepoint", {"name": "noon"})
    driver.epoch()
    driver.catalog.complete(directive.id, driver.head)
    assert driver.running() == []

    done = plane.get(f"/v1/operations/{making['id']}")
    savepoint = plane.get("/v1/applications/flights/savepoints/noon")
    assert (done["state"], done["result"]) == ("succeeded", savepoint)
    assert (savepoint["epoch"], savepoint["message"], savepoint["created_by"]) == (3, "before the upgrade", "admin")
    assert plane.get("/v1/applications/flights/savepoints")["items"] == [savepoint]


def test_savepoint_of_a_stopped_application_is_made_immediately(plane: Plane) -> None:
    driver = running(plane, epochs=2)
    stop(plane, driver)
    making = plane.post("/v1/applications/flights/savepoints", name="later")

    assert (making["state"], making["result"]["epoch"]) == ("succeeded", 2)


def test_savepoint_without_a_committed_epoch_fails(plane: Plane) -> None:
    plane.application(start=False)
    making = plane.post("/v1/applications/flights/savepoints", name="empty")

    assert making["state"] == "failed" and "not committed an epoch" in making["error"]["detail"]


def test_savepoint_fails_with_the_reason_of_the_driver(plane: Plane) -> None:
    driver = running(plane, epochs=1)
    making = plane.post("/v1/applications/flights/savepoints", name="noon")
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, None, Failure(type="sink-error", message="the sink is away"))

    failed = plane.get(f"/v1/operations/{making['id']}")
    assert failed["error"]["type"] == "urn:epochal:problem:sink-error"
    assert plane.client.get("/v1/applications/flights/savepoints/noon").status_code == 404


def test_savepoint_waits_for_the_next_attempt(plane: Plane) -> None:
    driver = running(plane, epochs=1)
    making = plane.post("/v1/applications/flights/savepoints", name="noon")
    driver.catalog.finish(Failure(type="driver-lost", message="killed"))
    successor = plane.driver()
    (directive,) = successor.running()
    successor.catalog.complete(directive.id, successor.head)

    assert plane.get(f"/v1/operations/{making['id']}")["result"]["epoch"] == 1


def test_taken_savepoint_name_is_refused(plane: Plane) -> None:
    driver = running(plane, epochs=1)
    stop(plane, driver)
    plane.post("/v1/applications/flights/savepoints", name="noon")
    plane.post("/v1/applications/flights/start")

    for path, body in (("savepoints", {"name": "noon"}), ("stop", {"savepoint": "noon"})):
        answer = plane.client.post(f"/v1/applications/flights/{path}", json=body)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:epochal:problem:name-taken")


def test_start_before_the_epoch_of_the_sinks_is_refused(plane: Plane) -> None:
    driver = running(plane, epochs=2)
    stop(plane, driver)
    plane.post("/v1/applications/flights/savepoints", name="two")
    plane.post("/v1/applications/flights/start")
    second = plane.driver()
    second.running()
    second.epoch()
    stop(plane, second)

    answer = plane.client.post("/v1/applications/flights/start", json={"savepoint": "two"})
    assert answer.status_code == 409
    assert "cannot return to epoch 2" in answer.json()["detail"]
    assert "fork it from the savepoint" in answer.json()["detail"]


def test_start_from_a_savepoint_begins_a_branch(plane: Plane) -> None:
    driver = running(plane, epochs=2, artifact=plane.artifact(sinks={"out": "console:"}))
    stop(plane, driver)
    plane.post("/v1/applications/flights/savepoints", name="two")
    plane.post("/v1/applications/flights/start")
    second = plane.driver()
    second.running()
    second.epochs(2)
    assert second.point.branch == driver.point.branch
    stop(plane, second)

    plane.post("/v1/applications/flights/start", savepoint="two")
    third = plane.driver()
    third.running()
    assert third.point.branch != driver.point.branch
    assert third.point.head == driver.head
    assert third.point.next_epoch == 5
    third.epoch()

    assert numbers(plane.get("/v1/applications/flights/epochs")) == [5, 2, 1]
    lineage = plane.get("/v1/applications/flights/lineage")
    (edge,) = [edge for edge in lineage["edges"] if edge["kind"] != "epoch"]
    assert edge["from"] == {"branch": driver.point.branch, "epoch": 2}
    assert edge["to"] == {"branch": third.point.branch, "epoch": 5}
    assert (edge["kind"], edge["label"]["by"], edge["label"]["version"]) == ("start", "admin", 1)


def test_start_from_the_head_stays_on_the_branch(plane: Plane) -> None:
    driver = running(plane, epochs=1)
    stop(plane, driver)
    plane.post("/v1/applications/flights/savepoints", name="head")
    plane.post("/v1/applications/flights/start", savepoint="head")

    assert plane.driver().point.branch == driver.point.branch


def test_start_from_a_savepoint_requires_prepared_epochs_to_commit(plane: Plane) -> None:
    driver = running(plane, epochs=1)
    making = plane.post("/v1/applications/flights/savepoints", name="one")
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, driver.head)
    assert plane.get(f"/v1/operations/{making['id']}")["state"] == "succeeded"
    driver.epoch(commit=False)
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", None)
    plane.control.ledger.execution_ended(driver.execution, "stopped", None)

    answer = plane.client.post("/v1/applications/flights/start", json={"savepoint": "one"})
    assert answer.status_code == 409 and "prepared" in answer.json()["detail"]


def test_fork_references_its_source_without_copies(plane: Plane) -> None:
    driver = running(plane, epochs=5)
    store = Path(plane.settings.store_url)
    before = files_below(store)
    body = {"name": "copy", "epoch": 3, "parameters": {"out": "/data/copy"}, "message": "try it", "start": False}
    fork = plane.post("/v1/applications/flights/fork", 201, **body)

    assert files_below(store) == before
    parent = {"application": "flights", "branch": driver.point.branch, "epoch": 3}
    assert (fork["state"], fork["parent"], fork["shadow"]) == ("created", parent, False)
    assert (fork["head"]["epoch"], fork["parameters"]) == (3, {"out": "/data/copy"})
    assert numbers(plane.get("/v1/applications/copy/epochs")) == [3, 2, 1]
    plane.post("/v1/applications/copy/start")
    child = plane.driver("copy")
    assert (child.attempt, child.point.next_epoch) == (1, 4)
    assert child.point.head is not None and child.point.head.key.epoch == 3
    child.running()
    child.epoch()
    driver.epoch()

    assert plane.get("/v1/applications/copy")["head"]["branch"] == child.point.branch
    assert plane.get("/v1/applications/flights")["head"]["epoch"] == 6
    assert numbers(plane.get("/v1/applications/copy/epochs")) == [4, 3, 2, 1]


def test_lineage_shows_the_whole_tree(plane: Plane) -> None:
    driver = running(plane, epochs=3)
    plane.post("/v1/applications/flights/fork", 201, name="copy", epoch=2, parameters={"out": "/data/copy"})
    child = plane.driver("copy")
    child.running()
    child.epoch()

    for name, head in (("flights", driver.head_key), ("copy", child.head_key)):
        lineage = plane.get(f"/v1/applications/{name}/lineage")
        assert head is not None and lineage["head"] == {"branch": head.branch, "epoch": head.epoch}
        seen = [(node["application"], node["epoch"]) for node in lineage["nodes"]]
        assert seen == [("copy", 3), ("flights", 3), ("flights", 2), ("flights", 1)]
        assert sorted(edge["kind"] for edge in lineage["edges"]) == ["epoch", "epoch", "fork"]
        assert lineage["nodes"][0]["changes"] == [{"kind": "fork", "detail": {}}]
        assert lineage["nodes"][0]["parameters"] == {"out": "/data/copy"}


def test_fork_must_have_its_own_sink_targets(plane: Plane) -> None:
    running(plane, epochs=1)
    answer = plane.client.post("/v1/applications/flights/fork", json={"name": "copy"})

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:shared-sink-targets")
    assert "'out' (files:/data/flights)" in answer.json()["detail"] and "shadow" in answer.json()["detail"]
    assert plane.client.get("/v1/applications/copy").status_code == 404
    shadow = plane.post("/v1/applications/flights/fork", 201, name="copy", shadow=True)
    assert shadow["shadow"] is True
    assert plane.control.ledger.plan(shadow["execution"]).shadow is True


def test_sinks_without_a_target_may_be_shared(plane: Plane) -> None:
    console = plane.artifact({"out": "console:"})
    running(plane, epochs=1, artifact=console)

    assert plane.post("/v1/applications/flights/fork", 201, name="copy")["parent"]["epoch"] == 1


def test_fork_starts_from_a_savepoint(plane: Plane) -> None:
    driver = running(plane, epochs=2)
    stop(plane, driver)
    plane.post("/v1/applications/flights/savepoints", name="two")
    fork = plane.post("/v1/applications/flights/fork", 201, name="copy", savepoint="two", shadow=True)

    assert fork["parent"]["epoch"] == 2


def test_fork_starts_from_a_time_or_a_tag(plane: Plane) -> None:
    running(plane, epochs=3)
    second = plane.get("/v1/applications/flights/epochs/2")
    plane.post("/v1/applications/flights/snapshots/1/tags", 201, name="good")
    for name, target, epoch in (("then", {"at": second["committed_at"]}, 2), ("good", {"tag": "good"}, 1)):
        fork = plane.post("/v1/applications/flights/fork", 201, name=name, shadow=True, start=False, **target)
        assert fork["parent"]["epoch"] == epoch


INVALID_FORKS: list[tuple[dict[str, Any], int, str]] = [
    ({"epoch": 9}, 404, "not-found"),
    ({"savepoint": "none"}, 404, "not-found"),
    ({"tag": "none"}, 404, "not-found"),
    ({"at": "2013-01-31T05:15:00Z"}, 404, "not-found"),
    ({"at": "2013-01-31T05:15:00"}, 422, "invalid-request"),
    ({"epoch": 1, "savepoint": "none"}, 422, "invalid-input"),
    ({"tag": "none", "at": "2013-01-31T05:15:00Z"}, 422, "invalid-input"),
    ({"name": "flights"}, 409, "name-taken"),
    ({"configuration": {"parallelism": 0}}, 422, "invalid-option"),
    ({"configuration": {"max_parallelism": 64}}, 422, "invalid-option"),
    ({"artifact": "e" * 64}, 422, "invalid-artifact"),
]


def test_invalid_fork_is_refused(plane: Plane) -> None:
    running(plane, epochs=1)
    for change, status, slug in INVALID_FORKS:
        answer = plane.client.post("/v1/applications/flights/fork", json={"name": "copy", "shadow": True, **change})
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:epochal:problem:{slug}"), change
        assert [item["name"] for item in plane.get("/v1/applications")["items"]] == ["flights"], change


def table(*value: tuple[str, str]) -> dict[str, Any]:
    columns = [{"name": name, "type": type} for name, type in value]
    key = [{"name": "airport", "type": "string"}]
    return {"id": "delays", "operator": "delays", "kind": "value", "key": key, "value": columns}


def test_fork_with_incompatible_code_is_refused_like_an_upgrade(plane: Plane) -> None:
    delays = plane.artifact(tables=[table(("worst", "int"))])
    running(plane, epochs=1, artifact=delays)
    other = plane.artifact(tables=[table(("worst", "string"))])
    upgrade = plane.client.post("/v1/applications/flights/versions", json={"artifact": other})
    fork = plane.client.post(
        "/v1/applications/flights/fork", json={"name": "copy", "artifact": other, "parameters": {"out": "/data/copy"}}
    )
    assert (fork.status_code, fork.json()["type"]) == (422, "urn:epochal:problem:incompatible-state")
    assert fork.json()["detail"] == upgrade.json()["detail"] and "'worst'" in fork.json()["detail"]
    assert plane.client.get("/v1/applications/copy").status_code == 404

    wider = plane.artifact(tables=[table(("worst", "bigint"))])
    plane.post("/v1/applications/flights/fork", 201, name="wider", artifact=wider, parameters={"out": "/data/wider"})


def test_fork_with_the_same_code_needs_no_analysis(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    running(plane, epochs=1, artifact=plane.artifact(tables=[table(("worst", "int"))]))
    monkeypatch.setattr(type(plane.control.builder), "analyse", None)
    plane.post("/v1/applications/flights/fork", 201, name="copy", parameters={"out": "/data/copy"})
    [version] = plane.get("/v1/applications/copy/versions")["items"]
    assert [found["id"] for found in version["graph"]["tables"]] == ["delays"]
    assert version["graph"]["sinks"] == {"out": "files:/data/copy"}


def test_fork_without_a_snapshot_is_refused(plane: Plane) -> None:
    running(plane)
    answer = plane.client.post("/v1/applications/flights/fork", json={"name": "copy", "shadow": True})

    assert answer.status_code == 409 and "nothing to fork" in answer.json()["detail"]


def test_analysis_of_an_earlier_graph_is_reused() -> None:
    node = NodeDescription(id=0, name="in", type="source", stream=StreamKind(Kind.APPEND))
    described = GraphDescription(name="flights", nodes=(node,), sinks={})
    columns = {"origin": "string"}
    earlier = node.model_copy(update={"columns": columns, "stream": None})
    known = _with_what_was_analysed(described, GraphDescription(name="flights", nodes=(earlier,), sinks={}, tables=()))
    assert known is not None
    assert (known.nodes[0].columns, known.nodes[0].stream) == (columns, StreamKind(Kind.APPEND))
