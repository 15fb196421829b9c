"""Restores after complete loss, from backups made under load, and restores that are refused."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from sqlalchemy import select

from epochal.client import Client
from epochal.connectors import dbms
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import (
    CatalogVersion,
    Conflict,
    EventsExpired,
    Fenced,
    SinkAhead,
    Unauthenticated,
)
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import EventRepository
from epochal.service.catalog.installations import CursorKey
from epochal.service.catalog.models import Branch, Execution
from epochal.service.catalog.post_restore import LEAP
from epochal.service.commands.restore import Restore
from epochal.service.domain.settings import Settings
from epochal.service.runtime.store_claim import StoreMismatch, claim_store
from epochal.snapshots.backup_format import Backups
from epochal.snapshots.store import SnapshotStore
from tests.service import engine_attempts
from tests.service.backups import backed_up, is_sound, restored, started
from tests.service.conftest import Plane, free_port


@pytest.mark.alternating(2)
def test_restored_applications_continue_exactly_once(settings: Settings, tmp_path: Path) -> None:
    """``behind`` stopped at the backup. ``ahead`` continued, so its sink shows epochs that the catalog has lost."""
    inputs, folder = tmp_path / "in", tmp_path / "backups"
    engine_attempts.write_inputs(inputs, 12)
    with started(settings) as plane:
        for name in ("behind", "ahead"):
            plane.application(name)
            engine_attempts.run_attempt(plane, name, inputs, tmp_path / name, 4)
        running = threading.Event()

        def load() -> None:
            for _ in range(3):
                engine_attempts.run_attempt(plane, "ahead", inputs, tmp_path / "ahead", 1)
                running.set()

        thread = threading.Thread(target=load)
        thread.start()
        running.wait(30)
        backed_up(plane, folder)
        thread.join()
        engine_attempts.run_attempt(plane, "ahead", inputs, tmp_path / "ahead", 2)
        old_token = settings.admin_token_file.read_text().strip()
        old_cursors = plane.control.cursor_key.get()
    assert is_sound(folder)
    shutil.rmtree(settings.data)

    report = restored(settings, folder)
    database = Database(settings.database_url)
    assert old_cursors != CursorKey(database).get()
    database.close()
    assert {row.name for row in report.applications} == {"ahead", "behind"}
    assert all(row.ran and not row.started for row in report.applications)
    epoch = next(row.epoch for row in report.applications if row.name == "ahead")
    assert epoch is not None and 4 < epoch < 9
    with started(settings) as plane:
        with pytest.raises(Unauthenticated):
            Client(settings.url, old_token).applications.list()
        with plane.control.database.reading() as session:
            assert all(row.attempt > LEAP for row in session.scalars(select(Branch)))
            with pytest.raises(EventsExpired):  # events of the lost time are missing
                EventRepository(session).position("ahead", LEAP)
            executions = session.scalars(select(Execution)).all()
            assert {row.state for row in executions} == {"failed"}
            assert all(row.failure and row.failure["type"] == "restored" for row in executions)
        for name in ("behind", "ahead"):
            assert plane.get(f"/v1/applications/{name}")["state"] == "failed"
            plane.post(f"/v1/applications/{name}/start")
        engine_attempts.run_attempt(plane, "behind", inputs, tmp_path / "behind")
        with pytest.raises(SinkAhead, match="already holds epoch 9"):
            engine_attempts.run_attempt(plane, "ahead", inputs, tmp_path / "ahead")
    counts = [number * (number + 1) // 2 for number in range(1, 13)]
    assert engine_attempts.shown(tmp_path / "behind") == {number: [count] for number, count in enumerate(counts, 1)}


@pytest.mark.alternating(2)
def test_sink_ahead_of_the_restore_requires_a_confirmed_rollback(settings: Settings, tmp_path: Path) -> None:
    inputs, folder, out = tmp_path / "in", tmp_path / "backups", tmp_path / "out"
    engine_attempts.write_inputs(inputs, 8)
    with started(settings) as plane:
        plane.application(parameters={"out": str(out)})
        engine_attempts.run_attempt(plane, "flights", inputs, out, 3)
        backed_up(plane, folder)
        engine_attempts.run_attempt(plane, "flights", inputs, out, 2)
    shutil.rmtree(settings.data)
    restored(settings, folder)
    with started(settings) as plane:
        old_branch = plane.get("/v1/applications/flights")["branch"]
        plane.post("/v1/applications/flights/start")
        with pytest.raises(SinkAhead, match="epochal rollback flights --epoch 3"):
            engine_attempts.run_attempt(plane, "flights", inputs, out)
        plane.post("/v1/applications/flights/stop")
        execution = plane.get("/v1/applications/flights")["execution"]
        plane.control.ledger.execution_ended(execution, "stopped", None)

        plan = plane.post("/v1/applications/flights/rollback", 200, epoch=3, dry_run=True)
        assert (plan["now"]["epoch"], plan["to"]["epoch"], plan["epochs"], plan["lost"]) == (3, 3, 0, 5)
        (sink,) = plan["sinks"]
        assert (sink["sink"], sink["shows"], sink["rows"], sink["rule"]) == ("out", 5, None, "stays")
        refused = plane.client.post("/v1/applications/flights/rollback", json={"epoch": 3})
        assert refused.json()["type"].endswith("rollback-not-confirmed")
        aside = plane.post("/v1/applications/flights/rollback", 200, epoch=3, dry_run=True, move_aside=True)
        done = plane.post("/v1/applications/flights/rollback", 202, epoch=3, move_aside=True, confirm=aside["confirm"])
        assert done["state"] == "succeeded" and done["result"]["branch"] != old_branch
        plane.check_counters()
        plane.post("/v1/applications/flights/start")
        engine_attempts.run_attempt(plane, "flights", inputs, out)
        again = plane.post("/v1/applications/flights/rollback", 200, epoch=6, dry_run=True)
        assert again["lost"] is None  # the new branch was made after the restore
    # Lost epochs 4 and 5 are moved aside, their numbers are not reused, and no row is missing or duplicated.
    assert engine_attempts.shown(out) == {1: [1], 2: [3], 3: [6], 6: [10], 7: [15], 8: [21], 9: [28], 10: [36]}


@pytest.mark.alternating(2)
def test_only_the_sink_ahead_of_the_restore_shows_lost_epochs(settings: Settings, tmp_path: Path) -> None:
    """The other sink was restored together with the catalog. Both continue on the new branch, exactly once."""
    inputs, folder, out, copy = (tmp_path / name for name in ("in", "backups", "out", "copy"))
    engine_attempts.write_inputs(inputs, 8)
    sinks = {engine_attempts.SINK: "files:{out}", engine_attempts.COPY: "files:{copy}"}
    with started(settings) as plane:
        artifact = plane.artifact(sinks)
        plane.application(artifact=artifact, parameters={"out": str(out), "copy": str(copy)})
        engine_attempts.run_attempt(plane, "flights", inputs, out, 3, copy)
        backed_up(plane, folder)
        shutil.copytree(copy, tmp_path / "as-it-was")
        engine_attempts.run_attempt(plane, "flights", inputs, out, 2, copy)
    shutil.rmtree(settings.data)
    shutil.rmtree(copy)
    (tmp_path / "as-it-was").rename(copy)
    restored(settings, folder)
    with started(settings) as plane:
        plane.post("/v1/applications/flights/start")
        with pytest.raises(SinkAhead, match="already holds epoch 5"):
            engine_attempts.run_attempt(plane, "flights", inputs, out, copy=copy)
        plane.post("/v1/applications/flights/stop")
        plane.control.ledger.execution_ended(plane.get("/v1/applications/flights")["execution"], "stopped", None)
        plan = plane.post("/v1/applications/flights/rollback", 200, epoch=3, dry_run=True, move_aside=True)
        assert [(sink["sink"], sink["shows"]) for sink in plan["sinks"]] == [(engine_attempts.SINK, 5)]
        done = plane.post("/v1/applications/flights/rollback", 202, epoch=3, move_aside=True, confirm=plan["confirm"])
        assert done["state"] == "succeeded"
        plane.post("/v1/applications/flights/start")
        engine_attempts.run_attempt(plane, "flights", inputs, out, copy=copy)
    expected = {1: [1], 2: [3], 3: [6], 6: [10], 7: [15], 8: [21], 9: [28], 10: [36]}
    assert (engine_attempts.shown(out), engine_attempts.shown(copy)) == (expected, expected)


@pytest.mark.alternating(2)
def test_restore_recovers_later_epochs_from_the_store(settings: Settings, tmp_path: Path) -> None:
    """Only the catalog was destroyed: manifests in the store record decisions, and sinks recognise what they show."""
    inputs, folder, out = tmp_path / "in", tmp_path / "backups", tmp_path / "out"
    engine_attempts.write_inputs(inputs, 8)
    with started(settings) as plane:
        plane.application(parameters={"out": str(out)})
        engine_attempts.run_attempt(plane, "flights", inputs, out, 3)
        backed_up(plane, folder)
        engine_attempts.run_attempt(plane, "flights", inputs, out, 3)
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
        (settings.data / name).unlink(missing_ok=True)
    report = restored(settings, folder, start=True)
    (row,) = report.applications
    assert (row.epoch, row.newer, row.started) == (6, 3, True)
    assert report.copied_files == 0
    with started(settings) as plane:
        assert plane.get("/v1/applications/flights")["state"] == "starting"
        engine_attempts.run_attempt(plane, "flights", inputs, out)
        states = {item["epoch"]: item["state"] for item in plane.get("/v1/applications/flights/epochs")["items"]}
    assert states == dict.fromkeys(range(1, 9), "committed")
    assert engine_attempts.shown(out) == {number: [number * (number + 1) // 2] for number in range(1, 9)}


def test_restore_over_a_running_installation_is_refused(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    with started(settings) as plane:
        plane.application()
        plane.driver().epochs(2)
        backed_up(plane, folder)
        with pytest.raises(Conflict, match="is not empty: it has rows in"):
            restored(settings, folder)
        other_catalog = settings.model_copy(update={"database": f"sqlite:///{tmp_path / 'other.sqlite'}"})
        with pytest.raises(Conflict, match="is in use"):
            Restore(other_catalog, Backups(str(folder)), quiet_seconds=3600).run()
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 2
    with started(Settings(data=tmp_path / "strange", port=free_port())) as strange:
        conflicting = other_catalog.model_copy(update={"store": strange.settings.store_url})
        with pytest.raises(Conflict, match="belongs to another catalog"):
            restored(conflicting, folder)


def test_catalog_replaced_by_a_restore_does_not_start(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    with started(settings) as plane:
        plane.application()
        backed_up(plane, folder)
    other_catalog = settings.model_copy(update={"database": f"sqlite:///{tmp_path / 'other.sqlite'}"})
    restored(other_catalog, folder)
    with pytest.raises(StoreMismatch, match="taken over by a restored catalog"):
        claim_store(Database(settings.database_url), SnapshotStore(settings.store_url))
    with started(other_catalog):
        pass
    with pytest.raises(Conflict, match="after this backup was created"):
        restored(settings.model_copy(update={"database": f"sqlite:///{tmp_path / 'third.sqlite'}"}), folder)


@pytest.mark.alternating(2)
def test_sqlite_backup_is_restored_into_postgresql_and_back(
    settings: Settings, tmp_path: Path, postgresql_url: str
) -> None:
    inputs, first, second = tmp_path / "in", tmp_path / "first", tmp_path / "second"
    engine_attempts.write_inputs(inputs, 4)
    with started(settings) as plane:
        plane.application()
        engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 2)
        plane.post("/v1/tokens", 201, name="reader", role="viewer")
        backed_up(plane, first)
    server = Settings(data=tmp_path / "server", port=free_port(), database=postgresql_url)
    restored(server, first)
    with started(server) as plane:
        plane.post("/v1/applications/flights/start")
        engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 1)
        assert len(plane.get("/v1/audit")["items"]) >= 3  # numbers continue after the restored ones
        backed_up(plane, second)
    back = Settings(data=tmp_path / "back", port=free_port())
    restored(back, second)
    with started(back) as plane:
        plane.post("/v1/applications/flights/start")
        engine_attempts.run_attempt(plane, "flights", inputs, tmp_path / "out", 1)
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 4
        with plane.control.database.reading() as session:
            assert all(row.attempt > 2 * LEAP for row in session.scalars(select(Branch)))
    assert engine_attempts.shown(tmp_path / "out") == {1: [1], 2: [3], 3: [6], 4: [10]}


def test_backup_of_a_later_version_is_refused(plane: Plane, tmp_path: Path) -> None:
    backed_up(plane, tmp_path / "backups")
    backups = Backups(str(tmp_path / "backups"))
    index = backups.index()
    backups.write_index(index.model_copy(update={"revision": "9999"}))
    with pytest.raises(CatalogVersion, match="does not support"):
        restored(Settings(data=tmp_path / "new", port=free_port()), tmp_path / "backups")


def test_sinks_fence_drivers_started_after_the_restored_backup(settings: Settings, tmp_path: Path) -> None:
    """Attempts made after the backup have numbers that the restored catalog has not yet assigned."""
    folder, url = tmp_path / "backups", f"sqlite:///{tmp_path / 'sink.sqlite'}"

    def sink() -> SinkBackend:
        store = SnapshotStore(settings.store_url)
        backend = dbms.sink(url=url, table="rows", create=True).make(SinkPlace("out", store))
        backend.check(engine_attempts.OUTPUT)
        return backend

    with started(settings) as plane:
        plane.application()
        driver = plane.driver()
        driver.epochs(2)
        backed_up(plane, folder)
        for _ in range(3):
            plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", None)
            driver = plane.driver()
        late = EpochScope("flights", EpochKey(driver.point.branch, 2), driver.attempt, None)
        zombie = sink()
        zombie.recover(late)
    shutil.rmtree(settings.data)
    restored(settings, folder)
    with started(settings) as plane:
        plane.post("/v1/applications/flights/start")
        new = plane.driver()
        assert new.attempt > LEAP + late.attempt - 3
        sink().recover(EpochScope("flights", EpochKey(new.point.branch, 2), new.attempt, None))
        following = EpochScope("flights", EpochKey(late.branch, 3), late.attempt, late.key)
        with pytest.raises(Fenced):
            zombie.commit(following, ())
