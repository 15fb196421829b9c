"""Backups over a real socket: creation, verification, pruning and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.errors import (
    FileCorrupt,
    NotFound,
)
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.models import Operation
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.settings import Settings
from epochal.snapshots.backup_format import Backups
from epochal.snapshots.backup_maintenance import verify_backup
from epochal.snapshots.store import SnapshotStore
from tests.service import engine_attempts
from tests.service.backups import backed_up, is_sound, restored
from tests.service.bundles import finished
from tests.service.conftest import Plane, free_port
from tests.service.problems import check_problem


def test_a_backup_is_complete_and_the_next_one_copies_new_files_only(plane: Plane, tmp_path: Path) -> None:
    inputs, place = tmp_path / "in", tmp_path / "backups"
    engine_attempts.write_inputs(inputs, 6)
    plane.application()
    engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 4)
    first = backed_up(plane, place)
    assert is_sound(place)
    assert first["copied"] == first["files"]
    assert first["snapshots"] == 4 and first["problems"] == []
    store = SnapshotStore(plane.settings.store_url)
    assert len(store.list("artifacts")) == 1
    assert set(Backups(str(place)).files.list("")) == set(store.list(""))

    engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 1)
    second = backed_up(plane, place)
    assert is_sound(place)
    assert 0 < second["copied"]["files"] == second["files"]["files"] - first["files"]["files"]
    assert Backups(str(place)).ids() == [first["id"], second["id"]]
    assert (place.stat().st_mode & 0o777) == 0o700


def test_verification_names_each_damaged_file(plane: Plane, tmp_path: Path) -> None:
    inputs, place = tmp_path / "in", tmp_path / "backups"
    engine_attempts.write_inputs(inputs, 3)
    plane.application()
    engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out")
    backed_up(plane, place)
    backups = Backups(str(place))
    pack, *_, other = (path for path in backups.files.list("") if path.endswith(".pack"))
    file = place / "files" / pack
    whole = file.read_bytes()
    file.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
    (damage,) = verify_backup(backups, backups.index(), quick=False).damages
    assert damage.path == f"files/{pack}" and "checksum" in damage.detail
    assert is_sound(place, quick=True)  # compares sizes only

    (place / "files" / other).unlink()
    assert not is_sound(place, quick=True)
    with pytest.raises(FileCorrupt, match="is incomplete"):
        restored(Settings(data=tmp_path / "new", port=free_port()), place)
    file.write_bytes(whole)
    again = backed_up(plane, place)
    assert again["copied"]["files"] >= 1  # the missing pack
    assert is_sound(place)


def test_a_backup_without_its_index_is_not_listed(plane: Plane, tmp_path: Path) -> None:
    plane.application()
    made = backed_up(plane, tmp_path / "backups")
    (tmp_path / "backups" / "backups" / made["id"] / "index.json").unlink()
    with pytest.raises(NotFound, match="holds no complete backup"):
        Backups(str(tmp_path / "backups")).index()


def test_a_collection_is_refused_during_a_backup(plane: Plane, tmp_path: Path) -> None:
    with plane.control.database.writing() as session:
        row = Operation(id="0" * 32, kind="backup", state="running", arguments={"to": "/x"}, created_by="test")
        row.created_at = now()
        row.claim_holder, row.claim_until = "elsewhere/boot/1:1/x", database_now(session).replace(year=2100)
        session.add(row)
    refused = plane.client.post("/v1/collections", json={})
    assert refused.status_code == 409 and "backup" in refused.json()["detail"]
    again = plane.client.post("/v1/backups", json={"to": str(tmp_path / "x")})
    assert again.status_code == 409


@pytest.mark.parametrize(
    ("to", "status"), [("relative/path", 422), ("s3://user:secret@bucket/x", 422), ("{store}/backups", 422)]
)
def test_an_unsuitable_destination_is_refused(plane: Plane, to: str, status: int) -> None:
    answer = plane.client.post("/v1/backups", json={"to": to.format(store=plane.settings.store_url)})
    assert answer.status_code == status, answer.text
    assert "secret" not in answer.text


def test_a_backup_to_a_metadata_service_is_refused(plane: Plane) -> None:
    for place in (
        "http://169.254.169.254/x",
        "simplecache::ftp://me@0xa9fea9fe:21/x",
        "webhdfs://[64:ff9b::a9fe:a9fe]/x",
    ):
        calls = [
            ("", {"to": place}),
            ("/prune", {"place": place, "keep": 1}),
            ("/prune/plan", {"place": place, "keep": 1}),
        ]
        for path, body in calls:
            answer = plane.client.post(f"/v1/backups{path}", json=body)
            check_problem(answer, 422, "invalid-option")
            assert "is a link-local address" in answer.json()["detail"]


def test_a_destination_of_another_installation_is_refused(plane: Plane, other: Plane, tmp_path: Path) -> None:
    backed_up(plane, tmp_path / "backups")
    refused = finished(other, other.post("/v1/backups", to=str(tmp_path / "backups")))
    assert refused["state"] == "failed" and "another installation" in refused["error"]["detail"]


def test_old_backups_are_pruned_by_their_installation_only(plane: Plane, other: Plane, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    plane.application(configuration={"retained_epochs": 1})
    driver = plane.driver()
    first, second = (driver.epoch(checkpoints=True) and backed_up(plane, place)["id"] for _ in range(2))
    order = {"place": str(place), "keep": 1}
    planned = plane.post("/v1/backups/prune/plan", 200, **order)
    assert ([backup["id"] for backup in planned["kept"]], planned["removed"][0]["id"]) == ([second], first)
    assert planned["deleted"]["files"] == 1  # a manifest
    assert len(Backups(str(place)).ids()) == 2
    for refused in ({"keep": 0, "place": str(place)}, {"place": str(place)}, {"keep": 1, "place": "relative"}):
        assert plane.client.post("/v1/backups/prune", json=refused).status_code == 422
    assert plane.client.post("/v1/backups/prune/plan", json={**order, "place": "/nowhere"}).status_code == 404
    assert "another installation" in other.client.post("/v1/backups/prune/plan", json=order).json()["detail"]
    theirs = finished(other, other.post("/v1/backups/prune", **order))
    assert theirs["state"] == "failed" and "another installation" in theirs["error"]["detail"]

    done = finished(plane, plane.post("/v1/backups/prune", **order))
    assert (done["state"], done["result"]) == ("succeeded", planned)
    assert Backups(str(place)).ids() == [second] and is_sound(place)
    next((place / "files").rglob("*.json")).unlink()
    third = backed_up(plane, place)["id"]
    (place / "backups" / third / "files.jsonl.gz").unlink()
    failed = finished(plane, plane.post("/v1/backups/prune", **order))
    assert failed["state"] == "failed" and Backups(str(place)).ids() == [second, third]


def test_discarding_a_backup_deletes_its_own_files_only(plane: Plane, tmp_path: Path) -> None:
    inputs, place = tmp_path / "in", tmp_path / "backups"
    engine_attempts.write_inputs(inputs, 3)
    plane.application()
    engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 2)
    made = backed_up(plane, place)
    before = sorted(place.rglob("*"))
    engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 1)
    backups = Backups(str(place))
    backups.files.write("flights-00000000/epochs/0000000001/x.parquet", b"left")
    backups.place.write("backups/cut/tables/epochs.jsonl.gz", b"left")
    backups.discard("cut")
    assert [path for path in sorted(place.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]
    assert backups.ids() == [made["id"]]


def test_a_dump_on_postgresql_reads_one_snapshot_of_the_catalog(postgresql_catalog_url: str) -> None:
    reader, writer = Database(postgresql_catalog_url), Database(postgresql_catalog_url)
    with reader.reading_one_moment() as session:
        assert InstallationRepository(session).find() is None
        with writer.writing() as other:
            InstallationRepository(other).ensure()
        session.expire_all()
        assert InstallationRepository(session).find() is None
    with reader.reading() as session:
        assert InstallationRepository(session).find() is not None
    reader.close()
    writer.close()
