"""Export and import over HTTP between two control planes, with real state."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from epochal.errors import StorageFull
from epochal.faults import FaultPoint, injected
from epochal.service.catalog.models import Branch, Epoch, Execution, Version
from epochal.service.commands.bundles import importing
from epochal.service.domain.settings import Settings
from epochal.testing.servers.hdfs import HdfsServer
from tests.service.bundles import (
    EXPORT,
    exported,
    files,
    finished,
    imported,
    members,
    part,
    refused,
    uploaded,
    value,
    with_state,
)
from tests.service.conftest import Plane, StandInSupervisor, free_port, serving
from tests.service.lookups import DELAYS, StateDriver, route
from tests.service.lost_answers import answer_lost


def test_import_has_the_state_and_the_history(plane: Plane, other: Plane) -> None:
    driver = with_state(plane)
    bundle = exported(plane, message="to the new cluster")
    done = imported(other, bundle, message="welcome")
    assert done["state"] == "succeeded", done["error"]

    application = other.get("/v1/applications/flights")
    assert (application["state"], application["head"]["epoch"]) == ("created", 3)
    assert application["parameters"] == {"out": "/new"}
    assert application["branch"] == done["result"]["branch"] != driver.driver.point.branch
    assert done["result"]["parent"] == {"branch": driver.driver.point.branch, "epoch": 3}
    assert value(other, "flights", "JFK", "LAX") == {"flights": 3, "worst": 1.0}
    assert value(other, "flights", "JFK", "LAX", epoch=1) == {"flights": 1, "worst": 1.0}
    assert other.get("/v1/applications/flights/state/delays/keys/%00,%00")["value"] == {"flights": 7, "worst": None}
    assert [item["epoch"] for item in other.get("/v1/applications/flights/epochs")["items"]] == [3, 2, 1]
    assert set(files(other)) == {path for path in files(plane) if not path.endswith(".tmp")}
    assert other.get("/v1/imports")["items"] == []
    other.check_counters()


@pytest.mark.alternating(2)
def test_imported_application_continues_from_the_snapshot(plane: Plane, other: Plane) -> None:
    with_state(plane)
    done = imported(other, exported(plane), name="copy", start=True, message="welcome")
    assert done["state"] == "succeeded", done["error"]
    successor = StateDriver(other, "copy", tables=(DELAYS,))
    begun = successor.driver.point.begun
    assert begun is not None and begun.kind == "import"
    origin = begun.detail["origin"]
    assert (origin["application"], origin["epoch"], origin["by"]) == ("flights", 3, "admin")
    assert begun.detail["message"] == "welcome" and len(origin["bundle_sha256"]) == 64
    assert successor.epoch((DELAYS, [route("JFK", "LAX", 40, 9.0)])) == 4
    assert value(other, "copy", "JFK", "LAX", min_epoch=4) == {"flights": 40, "worst": 9.0}
    assert value(other, "copy", "SFO", "A2") == {"flights": 2, "worst": 2.0}
    lineage = other.get("/v1/applications/copy/lineage")
    assert [edge["kind"] for edge in lineage["edges"]] == ["import", "epoch", "epoch"]


@pytest.mark.alternating(2)
def test_incremental_bundle_adds_the_later_epochs(plane: Plane, other: Plane) -> None:
    driver = with_state(plane)
    first = exported(plane)
    driver.epoch((DELAYS, [route("JFK", "LAX", 50, 5.0)]))
    increment = exported(plane, since=3)
    assert len(members(increment)) < len(members(first))

    status, slug, detail = refused(other, increment)
    assert (status, slug) == (409, "conflict") and "is incremental" in detail
    assert imported(other, first)["state"] == "succeeded"
    assert imported(other, increment, name="later")["state"] == "succeeded"
    assert value(other, "later", "JFK", "LAX") == {"flights": 50, "worst": 5.0}
    assert value(other, "flights", "JFK", "LAX") == {"flights": 3, "worst": 1.0}
    assert value(other, "later", "SFO", "A1") == {"flights": 1, "worst": 2.0}


@pytest.mark.long
def test_import_refuses_sink_targets_of_other_applications(plane: Plane, other: Plane) -> None:
    with_state(plane)
    bundle = exported(plane)
    other.application("theirs", parameters={"out": "/new"}, start=False)
    path = f"/v1/imports/{uploaded(other, bundle)}/application"
    answer = other.client.post(path, json={"parameters": {"out": "/new"}})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:shared-sink-targets")
    assert "as 'theirs' does" in answer.json()["detail"]
    assert imported(other, bundle, parameters={"out": "/new"}, shadow=True)["state"] == "succeeded"


@pytest.mark.long
def test_bundle_is_imported_where_it_was_exported(plane: Plane) -> None:
    with_state(plane)
    before = files(plane)
    done = imported(plane, exported(plane, epoch=2), name="copy")
    assert done["state"] == "succeeded", done["error"]
    assert files(plane) == before
    assert value(plane, "copy", "JFK", "LAX") == {"flights": 2, "worst": 1.0}


@pytest.mark.long
def test_moved_application_is_imported_back(plane: Plane, other: Plane) -> None:
    """The application has the same name in both; epochs and versions stay assigned to the control plane that made
    them."""
    local = with_state(plane)
    assert imported(other, exported(plane), start=True)["state"] == "succeeded"
    remote = StateDriver(other, tables=(DELAYS,))
    remote.epoch((DELAYS, [route("JFK", "LAX", 40, 9.0)]))
    local.epoch((DELAYS, [route("JFK", "LAX", 4, 1.0)]))

    done = imported(plane, exported(other), name="home", parameters={"out": "/home"})
    assert done["state"] == "succeeded", done["error"]
    assert done["result"]["parent"] == {"branch": remote.driver.point.branch, "epoch": 4}
    assert value(plane, "home", "JFK", "LAX") == {"flights": 40, "worst": 9.0}
    assert value(plane, "home", "JFK", "LAX", epoch=3) == {"flights": 3, "worst": 1.0}
    assert value(plane, "flights", "JFK", "LAX") == {"flights": 4, "worst": 1.0}
    with plane.control.database.reading() as session:
        found = session.execute(
            select(Epoch.branch, Version.parameters)
            .join(Execution, Execution.id == Epoch.execution)
            .join(Version, (Version.application == Execution.application) & (Version.number == Execution.version))
            .where(Epoch.epoch == 4)
        ).all()
    assert {branch: parameters["out"] for branch, parameters in found} == {
        local.driver.point.branch: "/data/flights",
        remote.driver.point.branch: "/new",
    }


@pytest.mark.long
def test_import_adds_no_epochs_to_a_local_branch(plane: Plane, other: Plane) -> None:
    """Applies even to a valid bundle: here the increment of a copy of the whole control plane."""
    driver = with_state(plane)
    assert imported(other, exported(plane))["state"] == "succeeded"
    driver.epoch((DELAYS, [route("JFK", "LAX", 50, 5.0)]))
    bundle = exported(plane)
    with plane.control.database.writing() as session:
        session.delete(session.get_one(Epoch, (driver.driver.point.branch, 4)))
        branch = session.get_one(Branch, driver.driver.point.branch)
        branch.head_epoch = 3
    done = imported(plane, bundle, name="copy")
    assert done["state"] == "failed"
    assert "was written by this control plane, and has no snapshot" in done["error"]["detail"]


def test_download_is_resumed(plane: Plane) -> None:
    with_state(plane)
    bundle = exported(plane)
    id = plane.get("/v1/operations")["items"][0]["id"]
    path = f"/v1/applications/flights/exports/{id}"
    whole = plane.client.get(path)
    rest = plane.client.get(path, headers={"Range": "bytes=100-", "If-Range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, bundle[100:])
    assert rest.headers["content-range"] == f"bytes 100-{len(bundle) - 1}/{len(bundle)}"
    other = plane.client.get(path, headers={"Range": "bytes=100-", "If-Range": '"another"'})
    assert (other.status_code, other.content) == (200, bundle)


def test_uploads_are_listed_in_pages(plane: Plane) -> None:
    announced = [plane.post("/v1/imports", 201, sha256=f"{number}" * 64, bytes=1)["id"] for number in range(3)]
    first = plane.get("/v1/imports", limit=2)
    rest = plane.get("/v1/imports", limit=2, cursor=first["next_cursor"])
    assert [upload["id"] for upload in first["items"] + rest["items"]] == announced
    assert rest["next_cursor"] is None


@pytest.mark.alternating(2)
def test_upload_arrives_in_parts_and_is_resumed(plane: Plane, other: Plane) -> None:
    with_state(plane)
    bundle = exported(plane)
    announcement = {"sha256": hashlib.sha256(bundle).hexdigest(), "bytes": len(bundle)}
    upload = other.post("/v1/imports", 201, **announcement)
    assert part(other, upload["id"], 0, bundle[:1000])["received"] == 1000
    assert other.post("/v1/imports", 201, **announcement)["id"] == upload["id"]
    part(other, upload["id"], 500, bundle[500:], expect=409)
    too_early = other.client.post(f"/v1/imports/{upload['id']}/application", json={})
    assert too_early.status_code == 409 and "upload the rest" in too_early.json()["detail"]
    assert part(other, upload["id"], 1000, bundle[1000:])["received"] == len(bundle)
    part(other, upload["id"], len(bundle), b"more", expect=422)
    done = finished(
        other, other.post(f"/v1/imports/{upload['id']}/application", parameters={"out": "/new"}, shadow=True)
    )
    assert done["state"] == "succeeded", done["error"]


@pytest.mark.alternating(2)
def test_targets_that_need_a_mapping_are_reported(plane: Plane, other: Plane) -> None:
    with_state(plane)
    bundle = exported(plane)
    id = uploaded(other, bundle)
    path = f"/v1/imports/{id}/application"
    refusal = other.client.post(path, json={})
    assert (refusal.status_code, refusal.json()["type"]) == (422, "urn:epochal:problem:mapping-needed")
    assert "Sink 'out' would write to files:/data/flights" in refusal.json()["detail"]
    assert "parameter out='/data/flights'" in refusal.json()["detail"]

    plan = other.post(path, 200, dry_run=True)
    assert plan["application"] == "flights" and len(plan["needs"]) == 1
    moved = other.post(path, 200, dry_run=True, map={"/data/flights": "/elsewhere"})
    assert (moved["needs"], moved["sinks"][0]["becomes"]) == ([], "files:/elsewhere")
    assert other.post(path, 200, dry_run=True, shadow=True)["needs"] == []
    unknown = other.client.post(path, json={"map": {"/nowhere": "/x"}})
    assert unknown.status_code == 422 and "No parameter of the bundle" in unknown.json()["detail"]
    assert finished(other, other.post(path, keep=["out"]))["state"] == "succeeded"


def test_taken_name_is_refused_before_the_import_starts(plane: Plane, other: Plane) -> None:
    with_state(plane)
    other.application()
    id = uploaded(other, exported(plane))
    answer = other.client.post(f"/v1/imports/{id}/application", json={"shadow": True})
    assert answer.json()["type"] == "urn:epochal:problem:name-taken"


@pytest.mark.long
def test_full_store_keeps_no_partial_import(plane: Plane, other: Plane) -> None:
    with_state(plane)
    bundle = exported(plane)

    def fill(point: FaultPoint, _epoch: int | None) -> None:
        if point.name == "import.member-stored" and len(files(other)) == 3:
            raise StorageFull("There is no space left.")

    with injected(fill):
        assert refused(other, bundle)[1] == "storage-full"
    assert imported(other, bundle)["state"] == "succeeded"


@pytest.mark.long  # kills at each step: fault/test_rollback_and_move_kills.py
def test_committed_import_with_a_lost_answer_keeps_its_files(plane: Plane, other: Plane) -> None:
    with_state(plane)
    with answer_lost(other.control.database, importing.WRITTEN) as lost:
        assert imported(other, exported(plane))["state"] == "succeeded"
    assert lost == [importing.WRITTEN]
    assert value(other, "flights", "JFK", "LAX") == {"flights": 3, "worst": 1.0}


@pytest.mark.long  # kills at each step: fault/test_rollback_and_move_kills.py
def test_import_that_was_not_committed_is_repeated(plane: Plane, other: Plane) -> None:
    with_state(plane)
    with answer_lost(other.control.database, importing.WRITTEN, lands=False) as lost:
        assert imported(other, exported(plane))["state"] == "succeeded"
    assert lost == [importing.WRITTEN]
    assert value(other, "flights", "JFK", "LAX") == {"flights": 3, "worst": 1.0}


@pytest.mark.long  # a store on HDFS: contract/test_hdfs_snapshots.py
@pytest.mark.server
def test_bundle_of_a_local_store_is_imported_into_hdfs(plane: Plane, tmp_path: Path, hdfs_server: HdfsServer) -> None:
    with_state(plane)
    address = hdfs_server.url.removeprefix("http://")
    store = f"webhdfs://{hdfs_server.user}@{address}{hdfs_server.create_folder()}"
    settings = Settings(data=tmp_path / "far", port=free_port(), store=store)
    with serving(settings, StandInSupervisor()) as (control, token):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=settings.url, headers=headers, trust_env=False, timeout=60) as client:
            far = Plane(control, client, settings, StandInSupervisor(), [])
            done = imported(far, exported(plane), start=True)
            assert done["state"] == "succeeded", done["error"]
            assert value(far, "flights", "JFK", "LAX") == {"flights": 3, "worst": 1.0}
            successor = StateDriver(far, tables=(DELAYS,))
            assert successor.epoch((DELAYS, [route("JFK", "LAX", 8, 1.0)])) == 4
            assert value(far, "flights", "JFK", "LAX", min_epoch=4) == {"flights": 8, "worst": 1.0}


def test_exports_of_missing_snapshots_are_refused(plane: Plane) -> None:
    plane.application()
    answer = plane.client.post(EXPORT, json={})
    assert answer.status_code == 409 and "nothing to export" in answer.json()["detail"]
    for body in ({"epoch": 9}, {"savepoint": "noon"}, {"tag": "dawn"}):
        assert plane.client.post(EXPORT, json=body).status_code == 404
    assert plane.client.get("/v1/applications/flights/exports/none").status_code == 404
    assert plane.client.get("/v1/imports/none").status_code == 404


def test_viewers_may_neither_export_nor_import(plane: Plane) -> None:
    with_state(plane, epochs=1)
    exported(plane)
    id = plane.get("/v1/operations")["items"][0]["id"]
    with plane.as_bearer(plane.token("viewer")) as reader:
        assert reader.get(f"/v1/applications/flights/exports/{id}").status_code == 403
        assert reader.post("/v1/imports", json={"sha256": "0" * 64, "bytes": 1}).status_code == 403
