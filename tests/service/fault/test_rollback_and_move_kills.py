"""The control plane is killed during rollbacks, exports, imports and collections. The next one finds all or nothing,
or continues."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from epochal.client import Client
from epochal.service.domain.settings import Settings
from epochal.snapshots.store import SnapshotStore
from tests.kit.stores import snapshot_files
from tests.service import test_collection as collections
from tests.service.conftest import Plane, free_port
from tests.service.fault.planes import KilledPlane, running_plane
from tests.service.fault.points import in_every_run
from tests.service.lookups import DELAYS, StateDriver, route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SECONDS = 60
EXPORTS = ("export.collected", "export.written", "export.named")
COLLECTIONS = ("G1.listed", "G2.planned", "G3.marked", "G4.file-deleted", "G5.emptied")
IMPORTS = ("import.member-stored", "import.stored", "import.written", "import.registered")
ONE_OF_EACH_CLASS = {
    EXPORTS: ("export.written",),  # an unreferenced file
    IMPORTS: ("import.member-stored", "import.written"),  # some of the files; all of them, without an application
    COLLECTIONS: ("G3.marked", "G4.file-deleted"),  # decided; some of the files deleted
}
"""Points that are tested in every run."""


def with_state(plane: Plane) -> StateDriver:
    plane.application()
    driver = StateDriver(plane, tables=(DELAYS,))
    for number in range(1, 6):
        driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0)]))
    return driver


def stop(plane: Plane, driver: StateDriver) -> None:
    plane.post("/v1/applications/flights/stop")
    driver.driver.stop()


def finished(plane: Plane, kind: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while True:
        found = next(item for item in plane.get("/v1/operations")["items"] if item["kind"] == kind)
        if found["state"] != "running":
            return dict(found)
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize("point", in_every_run(["rollback.moved"], ["rollback.moving", "rollback.moved"]))
def test_rollback_of_a_stopped_application_is_atomic(settings: Settings, killed_plane: KilledPlane, point: str) -> None:
    with running_plane(settings) as plane:
        driver = with_state(plane)
        stop(plane, driver)
        before = plane.get("/v1/applications/flights")
        confirm = plane.post("/v1/applications/flights/rollback", 200, epoch=2, dry_run=True)["confirm"]
    with killed_plane(settings, point) as client, suppress(httpx.TransportError):
        client.post("/v1/applications/flights/rollback", json={"epoch": 2, "confirm": confirm})
    with running_plane(settings) as plane:
        assert plane.get("/v1/applications/flights") == before
        assert plane.get("/v1/operations")["items"][0]["kind"] == "stop"
        again = plane.post("/v1/applications/flights/rollback", 202, epoch=2, confirm=confirm)
        assert again["state"] == "succeeded"


def test_rollback_of_a_running_application_continues(settings: Settings, killed_plane: KilledPlane) -> None:
    with running_plane(settings) as plane:
        driver = with_state(plane)
        confirm = plane.post("/v1/applications/flights/rollback", 200, epoch=2, dry_run=True)["confirm"]
    with killed_plane(settings, "rollback.asked") as client, suppress(httpx.TransportError):
        client.post("/v1/applications/flights/rollback", json={"epoch": 2, "confirm": confirm})
    with running_plane(settings) as plane:
        assert plane.get("/v1/operations")["items"][0]["progress"] == "stopping"
        driver.driver.stop()  # the driver survived, and receives the request from the new control plane
        successor = StateDriver(plane, tables=(DELAYS,))
        assert successor.head is not None and successor.head.epoch == 2
        assert finished(plane, "rollback")["state"] == "succeeded"


@pytest.mark.parametrize("point", in_every_run(["rollback.moved"], ["rollback.moving", "rollback.moved"]))
def test_move_during_a_rollback_is_repeated(settings: Settings, killed_plane: KilledPlane, point: str) -> None:
    """Killed while the driver reports its end: it repeats the report to the next control plane."""
    with running_plane(settings) as plane:
        driver = with_state(plane)
        confirm = plane.post("/v1/applications/flights/rollback", 200, epoch=2, dry_run=True)["confirm"]
        plane.post("/v1/applications/flights/rollback", 202, epoch=2, confirm=confirm)
    driver.driver.catalog._patience_seconds = 0.1
    with killed_plane(settings, point), suppress(Exception):
        driver.driver.stop()
    with running_plane(settings) as plane:
        assert plane.get("/v1/applications/flights")["branch"] == driver.driver.point.branch
        driver.driver.stop()
        successor = StateDriver(plane, tables=(DELAYS,))
        assert successor.driver.point.branch != driver.driver.point.branch
        assert finished(plane, "rollback")["result"]["branch"] == successor.driver.point.branch


@pytest.mark.parametrize("point", in_every_run(ONE_OF_EACH_CLASS[EXPORTS], EXPORTS))
def test_killed_export_is_repeated(settings: Settings, tmp_path: Path, killed_plane: KilledPlane, point: str) -> None:
    with running_plane(settings) as plane:
        with_state(plane)
    with killed_plane(settings, point) as client, suppress(httpx.TransportError):
        client.post("/v1/applications/flights/export", json={})
    with running_plane(settings) as plane:
        done = finished(plane, "export")
        assert done["state"] == "succeeded", done["error"]
        with Client(settings.url, settings.admin_token_file.read_text().strip()) as client:
            exports = client.application("flights").exports
            exports.fetch(client.operations.get(done["id"]), tmp_path / "bundle")
    with running_plane(settings) as plane:
        assert [path.split("/")[1] for path in SnapshotStore(settings.store_url).list("exports")] == [done["id"]]


@pytest.mark.parametrize("point", in_every_run(ONE_OF_EACH_CLASS[IMPORTS], IMPORTS))
def test_killed_import_is_repeated(settings: Settings, tmp_path: Path, killed_plane: KilledPlane, point: str) -> None:
    bundle = tmp_path / "bundle"
    with running_plane(settings) as plane:
        with_state(plane)
        with Client(settings.url, settings.admin_token_file.read_text().strip()) as client:
            exports = client.application("flights").exports
            exports.fetch(client.operations.wait(exports.create()), bundle)
        expected = snapshot_files(SnapshotStore(settings.store_url))
    other = Settings(data=tmp_path / "other", port=free_port())
    with running_plane(other), Client(other.url, other.admin_token_file.read_text().strip()) as client:
        upload = client.imports.upload(bundle)
    with killed_plane(other, point) as http, suppress(httpx.TransportError):
        http.post(f"/v1/imports/{upload.id}/application", json={"parameters": {"out": "/new"}})
    with running_plane(other) as plane:
        done = finished(plane, "import")
        assert done["state"] == "succeeded", done["error"]
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
        assert [item["name"] for item in plane.get("/v1/applications")["items"]] == ["flights"]
        assert snapshot_files(SnapshotStore(other.store_url)) == expected
        deadline = time.monotonic() + SECONDS
        while point != "import.registered" and plane.get("/v1/imports")["items"]:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("point", in_every_run(("import.renamed",), ("import.renamed", *IMPORTS)))
def test_killed_import_into_another_project_is_repeated(
    settings: Settings, tmp_path: Path, killed_plane: KilledPlane, point: str
) -> None:
    """The repeated import uses the same new names, so files in the store are not written twice."""
    bundle = tmp_path / "bundle"
    with running_plane(settings) as plane:
        with_state(plane)
        plane.post("/v1/projects", 201, name="ads")
        token = settings.admin_token_file.read_text().strip()
        with Client(settings.url, token) as client, Client(settings.url, token, project="ads") as ads:
            exports = client.application("flights").exports
            exports.fetch(client.operations.wait(exports.create()), bundle)
            upload = ads.imports.upload(bundle)
        before = snapshot_files(SnapshotStore(settings.store_url))
    with killed_plane(settings, point) as http, suppress(httpx.TransportError):
        request = {"name": "copy", "parameters": {"out": "/new"}}
        http.post(f"/v1/projects/ads/imports/{upload.id}/application", json=request)
    with running_plane(settings) as plane:
        deadline = time.monotonic() + SECONDS
        while (done := plane.get("/v1/projects/ads/operations")["items"][0])["state"] == "running":
            assert time.monotonic() < deadline, done
            time.sleep(0.05)
        assert done["state"] == "succeeded", done["error"]
        assert plane.get("/v1/projects/ads/applications/copy")["head"]["epoch"] == 5
        imported = set(snapshot_files(SnapshotStore(settings.store_url))) - set(before)
        assert len(imported) == len(before) and all(path.startswith("ads.flights-") for path in imported)
        plane.post("/v1/verifications")
        found = finished(plane, "verify")
    assert found["result"]["sound"] and found["result"]["unreferenced_files"] == []


@pytest.mark.parametrize("point", in_every_run(ONE_OF_EACH_CLASS[COLLECTIONS], COLLECTIONS))
def test_killed_collection_continues(settings: Settings, killed_plane: KilledPlane, point: str) -> None:
    with running_plane(settings) as plane:
        collections.running(plane, 6, retained_epochs=2)
    with killed_plane(settings, point) as client, suppress(httpx.TransportError):
        client.post("/v1/collections", json={"grace_seconds": 0})
    with running_plane(settings) as plane:
        for epoch in (5, 6):
            assert plane.get(f"{collections.SNAPSHOTS}/{epoch}")["epoch"] == epoch
        done = finished(plane, "collect")
        assert done["state"] == "succeeded", done["error"]
        collections.collected(plane, grace_seconds=0)
        plane.post("/v1/verifications")
        found = finished(plane, "verify")
    assert found["state"] == "succeeded"
    assert found["result"]["sound"] and found["result"]["unreferenced_files"] == []
    assert len(snapshot_files(SnapshotStore(settings.store_url))) == 2
