"""A control plane with its store in a bucket: moving there, verification, collection, backups, look-ups, while the
store is damaged, away, or refuses requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.cli import local_store
from epochal.cli.output import Output
from epochal.errors import EnvironmentProblem, FileMissing, StoreRefuses, StoreUnavailable
from epochal.service.catalog.database import Database
from epochal.service.commands.store_copy import StoreCopy
from epochal.service.domain.settings import Settings
from epochal.service.runtime import store_claim
from epochal.snapshots import object_store, row_groups
from epochal.snapshots import store as store_module
from epochal.snapshots.backup_format import Backups
from epochal.snapshots.backup_maintenance import verify_backup
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.ownership import StoreOwner, owner_of
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.s3_proxy import S3Proxy
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.stores import snapshot_files
from tests.kit.waiting import eventually
from tests.servers.contract.test_s3_snapshots import in_environment
from tests.service.backups import started
from tests.service.bundles import exported, finished, uploaded
from tests.service.conftest import Plane, free_port
from tests.service.fault.test_rollback_and_move_kills import stop, with_state
from tests.service.lookups import DELAYS, StateDriver, get, route
from tests.service.test_query_node import Node

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def settings(s3_proxy: S3Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A control plane with its store in a bucket, through the proxy. Failing requests are repeated for a second."""
    in_environment(monkeypatch, s3_proxy.environment())
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 1.0)
    return Settings(data=tmp_path / "data", port=free_port(), store=f"s3://{bucket}/store")


@pytest.fixture
def plane(settings: Settings) -> Iterator[Plane]:
    with started(settings) as plane:
        yield plane


def done(plane: Plane, path: str, **body: Any) -> dict[str, Any]:
    operation = finished(plane, plane.post(path, **body))
    assert operation["state"] == "succeeded", operation
    return dict(operation["result"])


def waits(plane: Plane, kind: str) -> str:
    """Wait until an operation of this kind waits for the store. Returns its id."""
    ids: list[str] = []

    def waiting() -> bool:
        found = next(item for item in plane.get("/v1/operations")["items"] if item["kind"] == kind)
        ids[:] = [found["id"]]
        assert found["state"] == "running", found
        return str(found["progress"]).startswith("waiting: The store ")

    eventually(waiting, seconds=60)
    return ids[0]


def forget_manifests() -> None:
    """Read manifests from the store again, as another process does."""
    store_module._manifests.clear()
    row_groups.forget()


def test_installation_moves_into_a_bucket_and_out_of_it(
    settings: Settings, s3_proxy: S3Proxy, bucket: str, tmp_path: Path
) -> None:
    local = settings.model_copy(update={"store": None})
    with started(local) as plane:
        stop(plane, with_state(plane))
    s3_proxy.refuse(503, kinds=["PUT"], containing="/epochs/")
    with pytest.raises(StoreUnavailable, match="is not available"):
        StoreCopy(local, settings.store_url).run()
    s3_proxy.heal()
    with started(local) as plane:  # the interrupted copy has changed nothing
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
    mark = s3_proxy.mark()
    report = StoreCopy(local, settings.store_url).run()
    counts = s3_proxy.counts(since=mark)
    assert 0 < report.copied_files <= report.files
    assert counts["HEAD"] <= 1, counts  # of the probe
    assert counts["LIST"] <= 4, counts  # the probe, the target before and after
    assert counts["PUT"] <= report.copied_files + 4, counts
    with started(settings) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
        assert done(plane, "/v1/verifications")["sound"]
    with pytest.raises(Exception, match="overlap"):
        StoreCopy(settings, f"{settings.store_url}/inner").run()

    second = settings.model_copy(update={"store": f"s3://{bucket}/second"})
    assert StoreCopy(settings, second.store_url).run().copied_files == report.files
    back = settings.model_copy(update={"store": str(tmp_path / "back")})
    StoreCopy(second, back.store_url).run()
    left = owner_of(SnapshotStore(settings.store_url))
    assert left is not None and left.moved_to == second.store_url
    with started(back) as plane:
        plane.post("/v1/applications/flights/start")
        driver = StateDriver(plane, tables=(DELAYS,))
        assert driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)])) == 6
        assert done(plane, "/v1/verifications")["sound"]


def test_one_of_two_catalogs_that_claim_a_bucket_gets_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found it without an owner."""
    first, second = (Database(new_sqlite_catalog(tmp_path / f"{name}.sqlite")) for name in ("first", "second"))
    store = SnapshotStore(settings.store_url)
    give_new = vars(store_claim)["give_new"]

    def after_the_other(store: SnapshotStore, owner: StoreOwner) -> bool:
        monkeypatch.setattr(store_claim, "give_new", give_new)
        store_claim.claim_store(second, store)
        return bool(give_new(store, owner))

    monkeypatch.setattr(store_claim, "give_new", after_the_other)
    with pytest.raises(store_claim.StoreMismatch, match="belongs to another catalog"):
        store_claim.claim_store(first, store)
    store_claim.claim_store(second, store)
    for database in (first, second):
        database.close()


def test_damaged_and_missing_objects_are_found(
    plane: Plane, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with_state(plane)
    store = SnapshotStore(settings.store_url)
    assert done(plane, "/v1/verifications")["sound"]
    damaged, missing = [path for path in store.list("") if "/epochs/" in path][:2]
    content = store.read(damaged)
    store.write(damaged, content[:-1] + bytes([content[-1] ^ 1]))
    store.delete(missing)
    found = done(plane, "/v1/verifications")
    assert {item["path"]: item["trouble"] for item in found["findings"]} == {damaged: "corrupt", missing: "missing"}
    assert not local_store.verify_store(settings.store_url, Output.make(True), lambda _: "", quick=False, repair=False)
    assert {item["path"] for item in json.loads(capsys.readouterr().out)["findings"]} == {damaged, missing}


def test_operations_wait_for_a_store_that_is_away(plane: Plane, s3_proxy: S3Proxy, tmp_path: Path) -> None:
    """Nothing counts as missing or damaged meanwhile, and nothing is deleted that is needed."""
    plane.application(configuration={"retained_epochs": 2})
    driver = plane.driver()
    driver.epochs(6, checkpoints=True)
    plane.post("/v1/applications/flights/stop")  # no driver protects the files of its branch
    driver.stop()
    plane.control.ledger.execution_ended(driver.execution, "stopped", None)
    store = SnapshotStore(plane.settings.store_url)
    before = snapshot_files(store)
    forget_manifests()
    unreadable = s3_proxy.refuse(503, kinds=["GET"], containing="/manifests/")
    began = plane.post("/v1/collections", grace_seconds=0)
    assert unreadable.met.wait(60)
    waits(plane, "collect")
    s3_proxy.heal()
    collected = finished(plane, began)
    assert collected["state"] == "succeeded" and collected["result"]["problems"] == [], collected
    kept = snapshot_files(store)
    assert kept == sorted(before)[-2:]

    for kind, path, body in (
        ("verify", "/v1/verifications", {}),
        ("backup", "/v1/backups", {"to": str(tmp_path / "backups")}),
        ("collect", "/v1/collections", {"grace_seconds": 0}),
    ):
        forget_manifests()
        s3_proxy.down()
        began = plane.post(path, **body)
        waits(plane, kind)
        s3_proxy.up()
        ended = finished(plane, began)
        assert ended["state"] == "succeeded", ended
        assert ended["result"].get("sound", True) and not ended["result"].get("problems"), ended
    assert snapshot_files(store) == kept


def test_deletion_that_fails_is_continued(plane: Plane, s3_proxy: S3Proxy) -> None:
    plane.application(configuration={"retained_epochs": 1})
    plane.driver().epochs(5, checkpoints=True)
    s3_proxy.refuse(503, kinds=["DELETE"])
    began = plane.post("/v1/collections", grace_seconds=0)
    waits(plane, "collect")
    s3_proxy.heal()
    assert finished(plane, began)["state"] == "succeeded"
    (last,) = snapshot_files(SnapshotStore(plane.settings.store_url))
    assert "/0000000005-" in last


def test_refusal_ends_an_operation(plane: Plane, s3_proxy: S3Proxy) -> None:
    with_state(plane)
    s3_proxy.refuse(403, code="InvalidAccessKeyId")
    for path in ("/v1/collections", "/v1/verifications"):
        ended = finished(plane, plane.post(path))
        assert ended["state"] == "failed", ended
        assert ended["error"]["type"].endswith("store-refuses") and "AWS_ACCESS_KEY_ID" in ended["error"]["detail"]
    s3_proxy.heal()
    assert done(plane, "/v1/verifications")["sound"]


def test_backups_in_a_bucket(plane: Plane, settings: Settings, s3_proxy: S3Proxy, bucket: str, tmp_path: Path) -> None:
    place = f"s3://{bucket}/backups"
    driver = with_state(plane)
    first = done(plane, "/v1/backups", to=place)
    driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)]))
    s3_proxy.refuse(503, kinds=["PUT"], containing="/backups/")
    began = plane.post("/v1/backups", to=place)
    waits(plane, "backup")
    s3_proxy.heal()
    second = finished(plane, began)["result"]
    assert second["snapshots"] == 6 and 0 < second["copied"]["files"] < first["copied"]["files"]
    backups = Backups(place)
    assert set(backups.ids()) == {first["id"], second["id"]}
    for containing in ("/backups/backups/", "/backups/files/"):  # a location that is away is not damaged
        s3_proxy.refuse(503, kinds=["GET"], containing=containing.removeprefix("/"))
        with pytest.raises(StoreUnavailable):
            verify_backup(backups, backups.index(), quick=False)
        s3_proxy.heal()
    assert verify_backup(backups, backups.index(), quick=False).is_sound
    pruned = done(plane, "/v1/backups/prune", place=place, keep=1)
    assert [item["id"] for item in pruned["removed"]] == [first["id"]]
    stop(plane, driver)

    restored = Settings(data=tmp_path / "restored", port=free_port(), store=f"s3://{bucket}/restored")
    local_store.restore(
        place,
        None,
        Output.make(True),
        settings={"home": restored.data, "store": restored.store},
        start=False,
        quick=False,
    )
    with started(restored) as again:
        assert again.get("/v1/applications/flights")["head"]["epoch"] == 6
        assert done(again, "/v1/verifications")["sound"]


def test_replicas_answer_and_the_rest_is_refused_with_the_reason(plane: Plane, s3_proxy: S3Proxy) -> None:
    """No answer is a 404, a 410 or a 500 because the store is away."""
    driver = with_state(plane)
    branch = "/v1/applications/flights"
    assert get(plane, "JFK,LAX", epoch=3)["value"]["flights"] == 3
    assert get(plane, "JFK,LAX", min_epoch=5, wait_seconds=30)["value"]["flights"] == 5
    artifact = plane.get("/v1/artifacts")["items"][0]["sha256"]
    forget_manifests()
    s3_proxy.down()
    assert get(plane, "JFK,LAX")["value"]["flights"] == 5  # the replica's
    lookup = f"{branch}/state/delays/keys/JFK,LAX"
    refused = {
        "GET": (
            f"{lookup}?epoch=3",
            f"{branch}/snapshots/3",
            f"{branch}/snapshots/3/diff?to=4",
            f"{branch}/state/delays/history?key=JFK,LAX",
            f"{branch}/state/delays/scan?epoch=2",
            f"{branch}/lineage?slices=true",
        ),
        "POST": ("/v1/collections/plan",),
    }
    for method, paths in refused.items():
        for path in paths:
            answer = plane.client.request(method, path, json={} if method == "POST" else None)
            if answer.status_code == 404 and answer.json()["type"].endswith("no-such-path"):
                pytest.fail(f"{path} does not exist")
            assert answer.status_code == 503, (path, answer.text)
            assert answer.json()["type"].endswith("store-unavailable") and "is not available" in answer.text
    uploaded = plane.client.post("/v1/artifacts", params={"filename": "b.py"}, content=b'# {"sinks": {}}\n')
    assert uploaded.status_code == 503, uploaded.text
    for path in (branch, f"{branch}/epochs", f"{branch}/snapshots", f"/v1/artifacts/{artifact}", f"{branch}/versions"):
        assert plane.client.get(path).status_code == 200
    s3_proxy.up()
    assert get(plane, "JFK,LAX", epoch=3)["value"]["flights"] == 3
    driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)]))
    assert get(plane, "JFK,LAX", min_epoch=6, wait_seconds=30)["value"]["flights"] == 6


def test_look_up_of_an_epoch_that_the_replica_cannot_reach(plane: Plane, s3_proxy: S3Proxy) -> None:
    driver = with_state(plane)
    assert get(plane, "JFK,LAX", min_epoch=5, wait_seconds=30)["value"]["flights"] == 5
    s3_proxy.refuse(503, kinds=["GET"])
    driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)]))  # writes only
    forget_manifests()
    answer = plane.client.get(
        "/v1/applications/flights/state/delays/keys/JFK,LAX", params={"min_epoch": 6, "wait_seconds": 5}
    )
    assert answer.status_code in (503, 200), answer.text
    if answer.status_code == 503:
        assert answer.json()["type"].endswith("store-unavailable")
    s3_proxy.heal()
    assert get(plane, "JFK,LAX", min_epoch=6, wait_seconds=30)["value"]["flights"] == 6


def test_part_of_a_file_that_cannot_be_read_is_not_damage(settings: Settings, s3_proxy: S3Proxy) -> None:
    """Parquet readers take an ``OSError`` for a damaged file, which would end an application for good."""
    store = SnapshotStore(settings.store_url)
    file = store.write_file("main/x", bytes(3_000_000), rows=1)
    with store.open(file, "main/1") as source:
        assert source.read(5) == bytes(5)
        s3_proxy.refuse(503)
        source.seek(2_500_000)
        with pytest.raises(StoreUnavailable):
            source.read(5)
        s3_proxy.heal()
        s3_proxy.refuse(403, code="AccessDenied")
        with pytest.raises(StoreRefuses):
            source.read(5)
        s3_proxy.heal()
        store.delete("main/x")
        with pytest.raises(FileMissing):
            source.read(5)
    with pytest.raises(FileMissing):
        store.open(FileReference(path="main/y", sha256="", bytes=5, rows=0), "main/1")


def test_export_and_import_wait_and_continue(plane: Plane, s3_proxy: S3Proxy, tmp_path: Path) -> None:
    """An import keeps the files that it has written before the store went away."""
    with started(Settings(data=tmp_path / "other", port=free_port())) as other:
        with_state(other)
        bundle = exported(other)
    id = uploaded(plane, bundle)
    refused = s3_proxy.refuse(503, kinds=["PUT"], containing="/epochs/")
    mark = s3_proxy.mark()
    began = plane.post(f"/v1/imports/{id}/application", name="copy", parameters={"out": "/copy"})
    assert refused.met.wait(60)
    waits(plane, "import")
    assert s3_proxy.counts(since=mark)["DELETE"] == 0
    s3_proxy.heal()
    ended = finished(plane, began)
    assert ended["state"] == "succeeded", ended
    assert done(plane, "/v1/verifications")["sound"]
    forget_manifests()
    s3_proxy.down()
    began = plane.post("/v1/applications/copy/export")
    waits(plane, "export")
    s3_proxy.up()
    assert finished(plane, began)["state"] == "succeeded"
    fetched = f"/v1/applications/copy/exports/{began['id']}"
    s3_proxy.down()
    answer = plane.client.get(fetched)
    assert answer.status_code == 503 and answer.json()["type"].endswith("store-unavailable"), answer.text
    s3_proxy.up()
    assert plane.client.get(fetched).status_code == 200


@pytest.mark.alternating(3)
def test_query_node_answers_what_its_replicas_have(
    plane: Plane, settings: Settings, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_STORE", settings.store_url)
    driver = with_state(plane)
    node = Node(plane)
    try:
        assert node.get(min_epoch=5).json()["value"]["flights"] == 5
        s3_proxy.down()
        assert node.get().json()["value"]["flights"] == 5
        refused = node.get(epoch=2)
        assert refused.status_code == 503 and refused.json()["type"].endswith("store-unavailable"), refused.text
        s3_proxy.up()
        assert node.get(epoch=2).json()["value"]["flights"] == 2
        driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)]))
        assert node.get(min_epoch=6, wait_seconds=30).json()["value"]["flights"] == 6
    finally:
        node.process.kill()
        node.process.communicate()


def test_query_node_waits_for_the_store_at_its_start(
    plane: Plane, s3_proxy: S3Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    database, store = plane.control.database, SnapshotStore(plane.settings.store_url)
    s3_proxy.refuse(503)
    waiting = threading.Thread(target=store_claim.await_store, args=(database, store, threading.Event()))
    waiting.start()
    eventually(lambda: "waiting for the store" in caplog.text, seconds=60)
    assert waiting.is_alive()
    s3_proxy.heal()
    waiting.join(60)
    assert not waiting.is_alive()
    s3_proxy.refuse(403, code="AccessDenied")
    with pytest.raises(EnvironmentProblem, match="Grant the credentials"):
        store_claim.await_store(database, store, threading.Event())
    s3_proxy.heal()
