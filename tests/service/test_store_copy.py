"""``epochal store copy``: what is copied, what is refused, and which store the installation uses afterwards."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from epochal.errors import Conflict, EnvironmentProblem, Fenced, FileMissing, InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Attempt, Execution
from epochal.service.catalog.types import now
from epochal.service.commands.store_copy import StoreCopy, StoreCopyReport, check_store_apart
from epochal.service.domain.settings import Settings
from epochal.service.runtime.store_claim import StoreMismatch, claim_store, confirm_claim
from epochal.snapshots.layout import OWNER
from epochal.snapshots.ownership import owner_of
from epochal.snapshots.store import SnapshotStore
from tests.service.backups import backed_up, restored, started
from tests.service.cli.conftest import CommandLine
from tests.service.conftest import Plane, free_port
from tests.service.fault.test_rollback_and_move_kills import stop, with_state
from tests.service.lookups import DELAYS, StateDriver, get, route


def moved(settings: Settings, target: Path) -> tuple[Settings, StoreCopyReport]:
    report = StoreCopy(settings, str(target)).run()
    return settings.model_copy(update={"store": str(target)}), report


def check_refused(settings: Settings, match: str) -> None:
    database = Database(settings.database_url)
    with pytest.raises(StoreMismatch, match=match):
        claim_store(database, SnapshotStore(settings.store_url))
    database.close()


def test_copied_store_replaces_the_old_one(settings: Settings, tmp_path: Path) -> None:
    with started(settings) as plane:
        driver = with_state(plane)
        driver.prepare((DELAYS, [route("JFK", "LAX", 6, 1.0)]))  # decided, and not committed in all sinks
        stop(plane, driver)
    old = Path(settings.store_url)
    (old / "stray").write_bytes(b"not in the catalog")
    code = SnapshotStore(str(old)).list("artifacts")
    target, report = moved(settings, tmp_path / "new")
    new = SnapshotStore(target.store_url)
    assert code and set(code) <= set(new.list("")) and "stray" not in new.list("")
    assert report.copied_files == report.files == len(new.list("")) and report.unmarked is None
    owner = owner_of(new)
    assert owner is not None and not owner.is_incomplete
    check_refused(settings, f"replaced by {new.url}.*Set EPOCHAL_STORE={new.url}")
    shutil.rmtree(old)
    with started(target) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
        plane.post("/v1/applications/flights/start")
        following = StateDriver(plane, tables=(DELAYS,))
        assert [record.epoch for record in following.driver.point.prepared] == [6]
        following.pending.append(6)
        assert following.epoch((DELAYS, [route("JFK", "LAX", 7, 1.0)])) == 7
        assert get(plane, "JFK,LAX", min_epoch=7, wait_seconds=30)["value"]["flights"] == 7
        stop(plane, following)
    check_refused(settings, "does not hold the catalog's snapshots")
    _, second = moved(target, tmp_path / "third")  # a second move
    assert second.files > report.files
    assert moved(target, tmp_path / "third")[1].resumed


@pytest.mark.alternating(2)
def test_store_of_a_postgresql_catalog_is_copied(
    settings: Settings, tmp_path: Path, postgresql_catalog_url: str
) -> None:
    settings = settings.model_copy(update={"database": postgresql_catalog_url})
    with started(settings) as plane:
        driver = with_state(plane)
        with pytest.raises(Conflict, match="control plane"):
            moved(settings, tmp_path / "new")
        stop(plane, driver)
    target, _ = moved(settings, tmp_path / "new")
    check_refused(settings, f"Set EPOCHAL_STORE={target.store_url}")
    with started(target) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5


def test_expired_snapshots_are_not_copied_and_count_as_collected(settings: Settings, tmp_path: Path) -> None:
    with started(settings) as plane:
        plane.application(configuration={"retained_epochs": 2})
        driver = plane.driver()
        driver.epochs(5, checkpoints=True)
        plane.post("/v1/applications/flights/stop")
        driver.stop()
    target, _ = moved(settings, tmp_path / "new")
    assert len([path for path in SnapshotStore(target.store_url).list("") if "/manifests/" in path]) == 2
    with started(target) as plane:
        gone = plane.client.get("/v1/applications/flights/snapshots/1")
        assert gone.status_code in (404, 410), gone.text
        assert plane.client.get("/v1/applications/flights/snapshots/5").status_code == 200


def test_interrupted_copy_copies_only_what_is_missing(settings: Settings, tmp_path: Path) -> None:
    with started(settings) as plane:
        stop(plane, with_state(plane))
    files: list[str] = []

    class Interrupted(Exception):
        pass

    def progress(said: str) -> None:
        files.append(said)
        if said.startswith("3 of") and said.endswith("MB"):
            raise Interrupted

    with pytest.raises(Interrupted):
        StoreCopy(settings, str(tmp_path / "new"), progress=progress).run()
    assert any("snapshots read" in said for said in files)
    there = len(SnapshotStore(str(tmp_path / "new")).list(""))
    assert there >= 3
    with started(settings) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
    _, report = moved(settings, tmp_path / "new")
    assert report.copied_files == report.files - there


def test_damaged_store_is_not_replaced(settings: Settings, tmp_path: Path) -> None:
    with started(settings) as plane:
        stop(plane, with_state(plane))
    store = SnapshotStore(settings.store_url)
    delta = next(path for path in store.list("") if "/epochs/" in path)
    content = store.read(delta)
    (Path(store.url) / delta).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileMissing, match=r"is damaged and stays in use.*checksum"):
        moved(settings, tmp_path / "new")
    (Path(store.url) / delta).unlink()
    with pytest.raises(FileMissing, match=r"is damaged and stays in use.*is missing"):
        moved(settings, tmp_path / "new")
    with started(settings) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
    store.write(delta, content)
    assert moved(settings, tmp_path / "new")[1].files


class TestInUse:
    def test_running_control_plane_and_drivers_are_refused(self, settings: Settings, tmp_path: Path) -> None:
        with started(settings) as plane:
            driver = with_state(plane)
            with pytest.raises(Conflict, match="control plane"):
                moved(settings, tmp_path / "new")
            stopped_at = plane.get("/v1/applications/flights")["head"]["epoch"]
        with pytest.raises(Conflict, match="The driver of flights uses the store: its lease is valid"):
            moved(settings, tmp_path / "new")
        assert not (tmp_path / "new").exists() and stopped_at == 5
        driver.driver.catalog.close()

    def test_driver_without_a_lease_is_fenced(self, settings: Settings, tmp_path: Path) -> None:
        """It survives the control plane, and must not write to the old store when the next one starts."""
        with started(settings) as plane:
            driver = with_state(plane)
            with plane.control.database.writing() as session:
                session.execute(update(Execution).values(heartbeat_at=now() - timedelta(minutes=1)))
        target, _ = moved(settings, tmp_path / "new")
        with started(target) as plane:
            with pytest.raises(Fenced):
                driver.driver.catalog.open_epoch(6, driver.head.key if driver.head else None)
            with plane.control.database.reading() as session:
                attempt = session.get_one(Attempt, (driver.driver.execution, driver.driver.attempt))
                assert (attempt.state, attempt.failure["type"]) == ("lost", "store-unavailable")  # type: ignore[index]
            following = StateDriver(plane, tables=(DELAYS,))
            assert following.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)])) == 6

    def test_control_plane_that_started_during_the_copy_stops_it(self, settings: Settings, tmp_path: Path) -> None:
        with started(settings) as plane:
            stop(plane, with_state(plane))

        def progress(said: str) -> None:
            if said == "comparing sizes":
                started_meanwhile.__enter__()

        started_meanwhile = started(settings)
        try:
            with pytest.raises(Conflict, match=r"The control plane at .* uses the store"):
                StoreCopy(settings, str(tmp_path / "new"), progress=progress).run()
        finally:
            started_meanwhile.__exit__(None, None, None)
        assert moved(settings, tmp_path / "new")[1].copied_files == 0

    def test_control_plane_that_claimed_the_store_before_the_switch_does_not_start(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        with started(settings) as plane:
            database, store = plane.control.database, plane.control.store
            incarnation = claim_store(database, store)
        confirm_claim(database, store, incarnation)
        moved(settings, tmp_path / "new")
        with pytest.raises(StoreMismatch, match="EPOCHAL_STORE="):
            confirm_claim(database, store, incarnation)


class TestTargets:
    @pytest.mark.parametrize(
        ("source", "target"),
        [
            ("/data/store", "/data/store"),
            ("/data/store", "/data/store/copy"),
            ("/data/store/inner", "/data/store"),
            ("s3://bucket/a", "s3a://bucket/a/b"),
            ("s3://bucket", "s3://bucket/a"),
        ],
    )
    def test_overlapping_stores_are_refused(self, source: str, target: str) -> None:
        with pytest.raises(InvalidInput, match="overlap"):
            check_store_apart(source, target)

    def test_symbolic_links_are_followed(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        os.symlink(tmp_path / "store", tmp_path / "link")
        with pytest.raises(InvalidInput, match="overlap"):
            check_store_apart(str(tmp_path / "store"), str(tmp_path / "link" / "inner"))
        check_store_apart(str(tmp_path / "store"), str(tmp_path / "store-2"))
        check_store_apart("s3://bucket/a", "s3://bucket/ab")

    def test_targets_of_others_and_with_files_are_refused(self, settings: Settings, tmp_path: Path) -> None:
        with started(settings) as plane:
            stop(plane, with_state(plane))
        with started(Settings(data=tmp_path / "strange", port=free_port())) as strange:
            theirs = strange.settings.store_url
        with pytest.raises(Conflict, match="belongs to another catalog"):
            moved(settings, Path(theirs))
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").write_bytes(b"x")
        with pytest.raises(Conflict, match="contains 1 files without an owner"):
            moved(settings, tmp_path / "full")
        target, _ = moved(settings, tmp_path / "new")
        with pytest.raises(Conflict, match="was used by this installation before"):
            moved(target, Path(settings.store_url))
        with pytest.raises(EnvironmentProblem, match="There is no catalog"):
            StoreCopy(Settings(data=tmp_path / "none"), str(tmp_path / "other")).run()

    def test_copy_of_another_store_is_not_continued(self, settings: Settings, tmp_path: Path) -> None:
        with started(settings) as plane:
            stop(plane, with_state(plane))
        incomplete = StoreCopy(settings, str(tmp_path / "b"), progress=_interrupt)
        with pytest.raises(KeyboardInterrupt):
            incomplete.run()
        target, _ = moved(settings, tmp_path / "a")
        with pytest.raises(Conflict, match="not of the present store"):
            moved(target, tmp_path / "b")


def _interrupt(said: str) -> None:
    if said.endswith("MB"):
        raise KeyboardInterrupt


def test_earlier_backups_are_restored_into_the_new_store_only(settings: Settings, tmp_path: Path) -> None:
    with started(settings) as plane:
        driver = with_state(plane)
        backed_up(plane, tmp_path / "backups")
        driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)]))
        stop(plane, driver)
    old = settings.store_url
    target, _ = moved(settings, tmp_path / "new")
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
        (settings.data / name).unlink(missing_ok=True)
    with pytest.raises(Conflict, match="was replaced by"):
        restored(settings.model_copy(update={"store": old}), tmp_path / "backups")
    report = restored(target, tmp_path / "backups")
    (row,) = report.applications
    assert (row.epoch, row.newer) == (6, 1)  # the epoch after the backup was copied, too


def test_old_store_that_cannot_be_marked_is_reported(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(settings) as plane:
        stop(plane, with_state(plane))
    (Path(settings.store_url) / OWNER).chmod(0o444)
    target = str(tmp_path / "new")
    write = SnapshotStore.write

    def refusing(self: SnapshotStore, path: str, data: bytes) -> None:
        if self.url != target:
            raise EnvironmentProblem("The volume is read-only.")
        write(self, path, data)

    monkeypatch.setattr(SnapshotStore, "write", refusing)
    assert StoreCopy(settings, target).run().unmarked == "The volume is read-only."
    monkeypatch.undo()
    check_refused(settings, f"Set EPOCHAL_STORE={target}")


def test_command_copies_the_store(plane: Plane, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EPOCHAL_")}
    epochal = CommandLine(inherited | {"EPOCHAL_HOME": str(plane.settings.data)})
    refused = epochal("store", "copy", "--to", tmp_path / "new")
    assert refused.code == 4 and "control plane" in refused.stderr
    home = tmp_path / "home"
    with started(Settings(data=home, port=free_port())) as other:
        stop(other, with_state(other))
    done = epochal("store", "copy", "--to", tmp_path / "new", "--home", home)
    assert done.code == 0, done.stderr
    assert f"set EPOCHAL_STORE={tmp_path / 'new'}" in " ".join(done.output.split())
    again = epochal("store", "copy", "--to", tmp_path / "new", "--home", home, "--json")
    assert again.document["resumed"] and again.document["target"] == str(tmp_path / "new")
    doctor = epochal("doctor", "--home", home)
    assert doctor.code == 1 and "EPOCHAL_STORE" in " ".join(doctor.output.split())
