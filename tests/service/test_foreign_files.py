"""Manifests that name files of another application are refused by every reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.identity import EpochKey
from epochal.errors import ForeignFile
from epochal.service.query_app import compose_worker
from epochal.service.query_composition import QueryOrders, compose_applier
from epochal.snapshots.manifest import BaseFile, FileInFlight, RecordsInFlight
from epochal.snapshots.store import SnapshotStore
from tests.service.backups import restored
from tests.service.bundles import exported, finished, imported
from tests.service.conftest import Plane, free_port
from tests.service.lookups import DELAYS, StateDriver, route

FLIGHTS = 4_711_174_711_471_174
"""Has more digits than occur by chance in a hexadecimal id of a request or a file."""
SECRET = route("VAULT", "SAFE", FLIGHTS, 0.5)
KINDS = ("delta", "base", "parent", "loop")
READINGS = (
    "state",
    "state/delays/keys/VAULT,SAFE",
    "state/delays/keys/VAULT,SAFE?isolation=read_uncommitted",
    "state/delays/keys/VAULT,SAFE?epoch=1",
    "state/delays/history?key=VAULT,SAFE",
    "state/delays/blame?key=VAULT,SAFE",
    "state/delays/scan",
    "state/delays/scan?epoch=1",
    "snapshots/1",
    "snapshots/1/diff?to=2",
    "snapshots/1/diff/delays?to=2",
)


def victim(plane: Plane) -> StateDriver:
    """The application ``secrets``, whose files others name."""
    plane.application("secrets")
    driver = StateDriver(plane, "secrets", tables=(DELAYS,))
    driver.epoch((DELAYS, [SECRET]))
    return driver


def forged(kind: str, owner: StateDriver) -> dict[str, Any]:
    """Fields of a manifest that name files of another application."""
    assert owner.head is not None
    theirs = SnapshotStore(owner.plane.settings.store_url).read_manifest(owner.head)
    file = next(delta.file for delta in theirs.deltas if delta.file.rows)
    match kind:
        case "delta":
            return {"deltas": theirs.deltas}
        case "parent":
            return {"parent": owner.head}
        case "base":
            at = EpochKey(theirs.branch, theirs.epoch)
            return {"bases": (BaseFile(table="delays", at=at, first_group=0, last_group=127, file=file),)}
        case _:
            loop = RecordsInFlight(columns=(), files=(FileInFlight(file=file, first=0, last=1),))
            return {"loops": {"again": loop}}


def refusal(plane: Plane, path: str) -> str:
    answer = plane.client.get(path)
    assert str(FLIGHTS) not in answer.text, path
    assert answer.status_code == 500, f"{path}: {answer.text}"
    return str(answer.json()["type"].rpartition(":")[2])


@pytest.mark.alternating(2)
def test_every_reader_refuses_a_snapshot_with_foreign_files(plane: Plane, tmp_path: Path) -> None:
    secrets, foreign = victim(plane), []
    for kind in KINDS:
        plane.application(kind)
        forger = StateDriver(plane, kind, tables=(DELAYS,))
        for number, names in ((1, forged(kind, secrets)), (2, {}), (3, forged(kind, secrets))):
            forger.epoch((DELAYS, [route("A", "B", number, 0.5)]), **names)
            assert forger.head is not None
            foreign += [forger.head] if names else []
        refused = {path: refusal(plane, f"/v1/applications/{kind}/{path}") for path in READINGS}
        assert refused == dict.fromkeys(READINGS, "foreign-file"), kind

    for epoch in (1, 2):
        export = finished(plane, plane.post("/v1/applications/delta/export", epoch=epoch))
        assert (export["state"], export["error"]["type"].rpartition(":")[2]) == ("failed", "foreign-file")
    back = plane.client.post("/v1/applications/delta/rollback", json={"epoch": 1, "dry_run": True})
    assert back.json()["type"].endswith("foreign-file"), back.text

    plan = plane.post("/v1/collections/plan", 200)
    assert sum("not in its lineage" in problem for problem in plan["problems"]) == 3 * len(KINDS)
    assert plan["files"] == []
    verified = finished(plane, plane.post("/v1/verifications"))["result"]
    found = {(finding["path"], finding["trouble"]) for finding in verified["findings"]}
    assert not verified["sound"]
    assert found == {(reference.path, "foreign") for reference in foreign}
    backup = finished(plane, plane.post("/v1/backups", to=str(tmp_path / "backups")))["result"]
    assert sum("not in its lineage" in problem for problem in backup["problems"]) == 3 * len(KINDS)

    orders = QueryOrders(settings=plane.settings, folder=tmp_path / "replicas")
    worker, applier = compose_worker(orders)[0], compose_applier(orders)
    with pytest.raises(ForeignFile):
        worker.manifests.get("delta", "1")
    with pytest.raises(ForeignFile):
        applier.replicas.store.read_manifest(foreign[0])
    worker.database.close()
    applier.database.close()


def test_a_restore_skips_manifests_with_foreign_files(plane: Plane, tmp_path: Path) -> None:
    """A restore adopts newer epochs from the store, but none that an author's code has forged."""
    secrets = victim(plane)
    plane.application("forger")
    forger = StateDriver(plane, "forger", tables=(DELAYS,))
    forger.epoch((DELAYS, [route("A", "B", 1, 0.5)]))
    place = tmp_path / "backups"
    assert finished(plane, plane.post("/v1/backups", to=str(place)))["state"] == "succeeded"
    forger.epoch((DELAYS, [route("A", "B", 2, 0.5)]))
    forger.epoch((DELAYS, [route("A", "B", 3, 0.5)]), **forged("delta", secrets))
    again = plane.settings.model_copy(
        update={"data": tmp_path / "again", "port": free_port(), "store": plane.settings.store_url}
    )
    report = restored(again, place)
    (found,) = (application for application in report.applications if application.name == "forger")
    assert (found.epoch, found.newer) == (2, 1)


@pytest.mark.alternating(2)
def test_files_of_ancestors_are_read(plane: Plane, other: Plane) -> None:
    """Chains of forks and imports, whose files lie under branches of their ancestors."""
    driver = victim(plane)
    driver.epoch((DELAYS, [route("A", "B", 1, 0.5)]))
    plane.post("/v1/applications/secrets/fork", 201, name="between", parameters={"out": "/b"}, epoch=2)
    plane.post("/v1/applications/between/fork", 201, name="flights", parameters={"out": "/f"}, epoch=2)
    fork = StateDriver(plane, "flights", tables=(DELAYS,))
    fork.epoch((DELAYS, [route("C", "D", 1, 0.5)]))
    for query in ({"epoch": 3}, {"min_epoch": 3}):
        answer = plane.get("/v1/applications/flights/state/delays/keys/VAULT,SAFE", **query)
        assert answer["value"]["flights"] == FLIGHTS

    done = imported(other, exported(plane), name="flights")
    assert done["state"] == "succeeded", done["error"]
    other.post("/v1/applications/flights/fork", 201, name="copy", parameters={"out": "/c"})
    moved = StateDriver(other, "copy", tables=(DELAYS,))
    moved.epoch((DELAYS, [route("E", "F", 1, 0.5)]))
    answer = other.get("/v1/applications/copy/state/delays/keys/VAULT,SAFE", min_epoch=moved.next_epoch - 1)
    assert answer["value"]["flights"] == FLIGHTS
    assert finished(other, other.post("/v1/verifications"))["result"]["sound"]
