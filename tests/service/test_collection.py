"""Garbage collection over a real socket: plans, requested and automatic collections, and refusals."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from epochal.contracts.catalog import EpochCounts
from epochal.service.catalog.models import Operation
from epochal.service.catalog.types import now
from epochal.service.commands import collections
from epochal.service.commands.collections import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.snapshots import store as store_module
from epochal.snapshots.collection import CollectionPlan, WaitingLimit
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from tests.kit.stores import snapshot_files
from tests.service.bundles import finished

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

SNAPSHOTS = "/v1/applications/flights/snapshots"


def store(plane: Plane) -> SnapshotStore:
    return SnapshotStore(plane.settings.store_url)


def running(plane: Plane, epochs: int, **configuration: object) -> Driver:
    plane.application(configuration=configuration)
    driver = plane.driver()
    for _ in range(epochs):
        epoch(plane, driver)
    return driver


def epoch(plane: Plane, driver: Driver) -> None:
    """Like ``Driver.epoch`` with checkpoints of the sources; also writes a manifest that no epoch names."""
    number, parent = driver._next, driver.head_key
    driver.catalog.open_epoch(number, parent)
    plain = store(plane).read_manifest(driver.manifest(number))
    manifest = Manifest.model_validate({**plain.model_dump(), "source_checkpoints": {"in": {}}})
    reference = store(plane).write_manifest(manifest)
    driver.catalog.prepare_epoch(number, parent, reference, EpochCounts())
    driver.catalog.commit_epoch(number)
    driver.head, driver._next = reference, number + 1


def collected(plane: Plane, **request: Any) -> dict[str, Any]:
    operation = finished(plane, plane.post("/v1/collections", **request))
    assert operation["state"] == "succeeded", operation
    assert (operation["kind"], operation["application"]) == ("collect", None)
    return dict(operation["result"])


def test_a_plan_lists_files_and_reasons_and_deletes_nothing(plane: Plane) -> None:
    driver = running(plane, 5, retained_epochs=2)
    before = snapshot_files(store(plane))
    planned = plane.post("/v1/collections/plan", 200, grace_seconds=0)

    assert [key["epoch"] for key in planned["snapshots"]] == [1, 2, 3]
    assert planned["total"]["files"] == len(planned["files"]) == 3 + 5  # the plain manifests are orphans
    assert planned["reasons"]["of an expired snapshot"]["files"] == 8
    assert planned["needed"]["files"] == 2 + 1  # the last is the artifact
    assert snapshot_files(store(plane)) == before
    assert plane.get(f"{SNAPSHOTS}/4")["branch"] == driver.point.branch


def test_a_collection_deletes_expired_snapshots_only(plane: Plane) -> None:
    running(plane, 5, retained_epochs=2)
    plane.post("/v1/applications/flights/savepoints", name="head")
    result = collected(plane, grace_seconds=0)

    assert (result["snapshots"], result["deleted"]["files"]) == (3, 8)
    assert len(snapshot_files(store(plane))) == 2
    assert plane.get(f"{SNAPSHOTS}/4")["epoch"] == 4
    refused = plane.client.get(f"{SNAPSHOTS}/1")
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:epochal:problem:snapshot-expired")
    assert collected(plane, grace_seconds=0)["deleted"]["files"] == 0


def test_nothing_is_deleted_within_the_grace_period(plane: Plane) -> None:
    running(plane, 3, retained_epochs=1)
    files = snapshot_files(store(plane))
    result = collected(plane)
    assert (result["snapshots"], result["deleted"]["files"]) == (2, 0)
    assert result["spared"]["of a snapshot that expired within the grace period"]["files"] > 0
    assert snapshot_files(store(plane)) == files
    assert plane.client.get(f"{SNAPSHOTS}/1").status_code == 410

    later = Collection(plane.control.database, store(plane), lambda: now() + timedelta(hours=2))
    _, deleted = later.run(CollectionRequest(timedelta(hours=1)))
    assert deleted.files == len(files) - 1


def test_pinned_snapshots_and_parents_of_forks_are_retained(plane: Plane) -> None:
    driver = running(plane, 3, retained_epochs=2)
    plane.post(f"{SNAPSHOTS}/2/pin", 201)
    plane.post("/v1/applications/flights/fork", 201, name="copy", parameters={"out": "/data/copy"}, epoch=3)
    for _ in range(4):
        epoch(plane, driver)
    collected(plane, grace_seconds=0)
    for held in (2, 3, 6, 7):
        assert plane.get(f"{SNAPSHOTS}/{held}")["epoch"] == held
    assert plane.client.get(f"{SNAPSHOTS}/4").status_code == 410


def test_snapshots_of_a_deleted_application_are_retained_for_its_forks(plane: Plane) -> None:
    driver = running(plane, 3)
    plane.post("/v1/applications/flights/savepoints", name="named")
    plane.post(
        "/v1/applications/flights/fork", 201, name="copy", parameters={"out": "/data/copy"}, epoch=2, start=False
    )
    plane.post("/v1/applications/flights/stop")
    driver.stop()
    assert plane.client.delete("/v1/applications/flights").status_code == 204
    collected(plane, grace_seconds=0)
    assert plane.get("/v1/applications/copy/snapshots/2")["epoch"] == 2
    assert len(snapshot_files(store(plane))) == 2  # epochs 1 and 2 are in the lineage of the copy

    assert plane.client.delete("/v1/applications/copy").status_code == 204
    collected(plane, grace_seconds=0)
    assert snapshot_files(store(plane)) == []


def test_orphans_are_deleted_and_files_of_an_open_epoch_are_not(plane: Plane) -> None:
    driver = running(plane, 2)
    branch, unique = driver.point.branch, "0" * 32
    orphans = [
        f"{branch}/epochs/0000000001/t-00000-{unique}.parquet",
        f"{branch}/logs/out/0000000002/1-00000-{unique}.arrow",
        f"{branch}/epochs/0000000002/.t-00001-{unique}.parquet.0a0a0a0a.tmp",
        f"trial-{unique}/epochs/0000000001/t-00000-{unique}.parquet",
    ]
    others = [
        f"{branch}/epochs/0000000003/t-00000-{unique}.parquet",
        f"{branch}/logs/out/0000000003/1-00000-{unique}.arrow",
        f"{branch}/bases/t-0000000002-0-3-{unique}.parquet",
        f"{branch}/notes.txt",
        f"unknown-01234567/epochs/0000000001/t-00000-{unique}.parquet",
        f"trial-run-01234567/epochs/0000000001/t-00000-{unique}.parquet",
    ]
    for path in orphans + others:
        store(plane).write(path, b"x")
    driver.catalog.open_epoch(3, driver.head_key)
    result = collected(plane, grace_seconds=0)
    assert {path for path in orphans + others if path in snapshot_files(store(plane))} == set(others)
    assert set(result["foreign"]) == {branch, "unknown-01234567", "trial-run-01234567"}

    asked = collected(plane, grace_seconds=0, foreign=["unknown-01234567", branch])
    assert asked["reasons"]["foreign, asked for"]["files"] == 1
    assert f"{branch}/notes.txt" in snapshot_files(store(plane))


def test_a_second_collection_is_refused_until_the_first_has_ended(plane: Plane) -> None:
    at = now()
    with plane.control.database.writing() as session:
        claim = {"claim_holder": "elsewhere/boot/1@1/x", "claim_until": at + timedelta(minutes=1)}
        session.add(
            Operation(id="1", kind="collect", state="running", arguments={}, created_at=at, created_by="me", **claim)
        )
    refused = plane.client.post("/v1/collections", json={})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:epochal:problem:conflict")
    assert "collect 1" in refused.json()["detail"]
    with plane.control.database.writing() as session:
        session.get_one(Operation, "1").claim_until = at
    plane.control.worker.work_off("store")
    assert plane.get("/v1/operations/1")["state"] == "succeeded"
    collected(plane)


def test_collections_need_an_administrator_and_a_valid_request(plane: Plane) -> None:
    with plane.as_bearer(plane.token("author")) as operator:
        assert operator.post("/v1/collections", json={}).status_code == 403
        assert operator.post("/v1/collections/plan", json={}).status_code == 403
    for wrong in ({"grace_seconds": -1}, {"foreign": ["../x"]}, {"unknown": 1}, {"foreign": [""]}):
        assert plane.client.post("/v1/collections", json=wrong).status_code == 422


def test_a_missing_manifest_prevents_deletions_of_its_lineage_only(plane: Plane) -> None:
    driver = running(plane, 4, retained_epochs=2)
    plane.application("other", configuration={"retained_epochs": 1})
    other = plane.driver("other")
    for _ in range(3):
        epoch(plane, other)
    assert driver.head is not None
    (Path(plane.settings.store_url) / driver.head.path).unlink()
    fresh = SnapshotStore(plane.settings.store_url)
    store_module._manifests.clear()
    plan, _ = Collection(plane.control.database, fresh).run(CollectionRequest(timedelta(0)))
    assert driver.head.path in plan.problems[0]
    assert {key.branch for key in plan.snapshots} == {other.point.branch}
    assert len(fresh.list(driver.point.branch)) == 7


HOUR = timedelta(hours=1)


def test_grace_is_shortened_while_more_files_wait_than_the_limit_allows(plane: Plane) -> None:
    running(plane, 4, retained_epochs=1)
    every = snapshot_files(store(plane))
    collected(plane)  # marks the expired snapshots

    def plan_of(limit: WaitingLimit | None, later: timedelta) -> CollectionPlan:
        collection = Collection(plane.control.database, store(plane), lambda: now() + later)
        return collection.plan(CollectionRequest(HOUR, limit=limit))

    later = timedelta(minutes=20)
    assert (plan_of(None, later).grace, plan_of(None, later).files) == (HOUR, ())
    assert plan_of(WaitingLimit(1.0), later).grace == HOUR  # less than 1 GiB waits
    assert plan_of(WaitingLimit(100.0, bytes=0), later).grace == HOUR  # less than 100 times the needed files waits

    shortened = plan_of(WaitingLimit(1.0, bytes=0), later)
    assert shortened.grace == timedelta(minutes=15)
    assert (len(shortened.files), shortened.waiting) == (len(every) - 1, 0)

    least = plan_of(WaitingLimit(1.0, bytes=0), timedelta(minutes=5))
    assert (least.grace, least.files) == (timedelta(minutes=10), ())


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(collections, "LEAST_INTERVAL", timedelta(0))


@pytest.mark.usefixtures("looks_often")
def test_collection_begins_early_when_much_has_been_written(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    for mebibytes in (200, 100):  # with merges less than 1 GiB
        _epoch_of(plane, driver, mebibytes << 20)
    time.sleep(0.5)
    assert _collections(plane) == []

    _epoch_of(plane, driver, 100 << 20)
    deadline = time.monotonic() + 20
    while not _collections(plane) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [row.created_by for row in _collections(plane)] == ["epochal"]


def _epoch_of(plane: Plane, driver: Driver, state_bytes: int) -> None:
    number, parent = driver._next, driver.head_key
    driver.catalog.open_epoch(number, parent)
    reference = driver.manifest(number)
    driver.catalog.prepare_epoch(number, parent, reference, EpochCounts(state_bytes=state_bytes))
    driver.catalog.commit_epoch(number)
    driver.head, driver._next = reference, number + 1


def _collections(plane: Plane) -> list[Operation]:
    with plane.control.database.reading() as session:
        return list(session.scalars(select(Operation).where(Operation.kind == "collect")))


def test_a_control_plane_collects_automatically(settings: Settings, serve: Callable[..., Any]) -> None:
    often = settings.model_copy(update={"collect_every": 0.05 / 3600, "grace": 0.0})
    with serve(often) as (control, _):
        deadline = time.monotonic() + 20
        found: list[Operation] = []
        while not found and time.monotonic() < deadline:
            with control.database.reading() as session:
                found = list(session.scalars(select(Operation).where(Operation.state == "succeeded")))
            time.sleep(0.02)
    assert found and {(row.kind, row.created_by) for row in found} == {("collect", "epochal")}
