"""Backups restored after everything was destroyed, made under load; and where a restore is refused."""

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
from tests.service import engine_lives as lives
from tests.service.backups import backed_up, is_sound, restored, started
from tests.service.conftest import Plane, free_port


@pytest.mark.by_turns(2)
def test_after_everything_was_destroyed_applications_go_on_exactly_once_where_sinks_are_not_ahead(
    settings: Settings, tmp_path: Path
) -> None:
    """``behind`` ran no further after the backup; ``ahead`` did: its sink shows epochs that nobody knows any more."""
    inputs, place = tmp_path / "in", tmp_path / "backups"
    lives.write_inputs(inputs, 12)
    with started(settings) as plane:
        for name in ("behind", "ahead"):
            plane.application(name)
            lives.live(plane, name, inputs, tmp_path / name, 4)
        running = threading.Event()

        def load() -> None:
            for _ in range(3):
                lives.live(plane, "ahead", inputs, tmp_path / "ahead", 1)
                running.set()

        thread = threading.Thread(target=load)
        thread.start()
        running.wait(30)
        backed_up(plane, place)
        thread.join()
        lives.live(plane, "ahead", inputs, tmp_path / "ahead", 2)
        old_token = settings.admin_token_file.read_text().strip()
        old_cursors = plane.control.cursor_key.get()
    assert is_sound(place)
    shutil.rmtree(settings.data)

    report = restored(settings, place)
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
            with pytest.raises(EventsExpired):  # those of the lost time are not there
                EventRepository(session).position("ahead", LEAP)
            executions = session.scalars(select(Execution)).all()
            assert {row.state for row in executions} == {"failed"}
            assert all(row.failure and row.failure["type"] == "restored" for row in executions)
        for name in ("behind", "ahead"):
            assert plane.get(f"/v1/applications/{name}")["state"] == "failed"
            plane.post(f"/v1/applications/{name}/start")
        lives.live(plane, "behind", inputs, tmp_path / "behind")
        with pytest.raises(SinkAhead, match="already holds epoch 9"):
            lives.live(plane, "ahead", inputs, tmp_path / "ahead")
    counts = [number * (number + 1) // 2 for number in range(1, 13)]
    assert lives.shown(tmp_path / "behind") == {number: [count] for number, count in enumerate(counts, 1)}


@pytest.mark.by_turns(2)
def test_an_application_whose_sinks_are_ahead_goes_on_on_a_new_branch_when_somebody_has_confirmed_it(
    settings: Settings, tmp_path: Path
) -> None:
    inputs, place, out = tmp_path / "in", tmp_path / "backups", tmp_path / "out"
    lives.write_inputs(inputs, 8)
    with started(settings) as plane:
        plane.application(parameters={"out": str(out)})
        lives.live(plane, "flights", inputs, out, 3)
        backed_up(plane, place)
        lives.live(plane, "flights", inputs, out, 2)
    shutil.rmtree(settings.data)
    restored(settings, place)
    with started(settings) as plane:
        left = plane.get("/v1/applications/flights")["branch"]
        plane.post("/v1/applications/flights/start")
        with pytest.raises(SinkAhead, match="epochal rollback flights --epoch 3"):
            lives.live(plane, "flights", inputs, out)
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
        assert done["state"] == "succeeded" and done["result"]["branch"] != left
        plane.check_counters()
        plane.post("/v1/applications/flights/start")
        lives.live(plane, "flights", inputs, out)
        again = plane.post("/v1/applications/flights/rollback", 200, epoch=6, dry_run=True)
        assert again["lost"] is None  # the new branch is from after the restore
    # Epochs 4 and 5 of the lost time are aside, their numbers are not used again, and nothing is missing or twice.
    assert lives.shown(out) == {1: [1], 2: [3], 3: [6], 6: [10], 7: [15], 8: [21], 9: [28], 10: [36]}


@pytest.mark.by_turns(2)
def test_of_two_sinks_only_the_one_that_is_ahead_shows_what_was_lost(settings: Settings, tmp_path: Path) -> None:
    """The other one was restored together with the catalog. Both go on on the new branch, exactly once."""
    inputs, place, out, copy = (tmp_path / name for name in ("in", "backups", "out", "copy"))
    lives.write_inputs(inputs, 8)
    sinks = {lives.SINK: "files:{out}", lives.COPY: "files:{copy}"}
    with started(settings) as plane:
        artifact = plane.artifact(sinks)
        plane.application(artifact=artifact, parameters={"out": str(out), "copy": str(copy)})
        lives.live(plane, "flights", inputs, out, 3, copy)
        backed_up(plane, place)
        shutil.copytree(copy, tmp_path / "as-it-was")
        lives.live(plane, "flights", inputs, out, 2, copy)
    shutil.rmtree(settings.data)
    shutil.rmtree(copy)
    (tmp_path / "as-it-was").rename(copy)
    restored(settings, place)
    with started(settings) as plane:
        plane.post("/v1/applications/flights/start")
        with pytest.raises(SinkAhead, match="already holds epoch 5"):
            lives.live(plane, "flights", inputs, out, copy=copy)
        plane.post("/v1/applications/flights/stop")
        plane.control.ledger.execution_ended(plane.get("/v1/applications/flights")["execution"], "stopped", None)
        plan = plane.post("/v1/applications/flights/rollback", 200, epoch=3, dry_run=True, move_aside=True)
        assert [(sink["sink"], sink["shows"]) for sink in plan["sinks"]] == [(lives.SINK, 5)]
        done = plane.post("/v1/applications/flights/rollback", 202, epoch=3, move_aside=True, confirm=plan["confirm"])
        assert done["state"] == "succeeded"
        plane.post("/v1/applications/flights/start")
        lives.live(plane, "flights", inputs, out, copy=copy)
    expected = {1: [1], 2: [3], 3: [6], 6: [10], 7: [15], 8: [21], 9: [28], 10: [36]}
    assert (lives.shown(out), lives.shown(copy)) == (expected, expected)


@pytest.mark.by_turns(2)
def test_what_the_store_still_has_of_after_the_backup_is_not_lost(settings: Settings, tmp_path: Path) -> None:
    """Only the catalog was destroyed: its manifests say what was decided, and sinks recognise what they show."""
    inputs, place, out = tmp_path / "in", tmp_path / "backups", tmp_path / "out"
    lives.write_inputs(inputs, 8)
    with started(settings) as plane:
        plane.application(parameters={"out": str(out)})
        lives.live(plane, "flights", inputs, out, 3)
        backed_up(plane, place)
        lives.live(plane, "flights", inputs, out, 3)
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
        (settings.data / name).unlink(missing_ok=True)
    report = restored(settings, place, start=True)
    (row,) = report.applications
    assert (row.epoch, row.newer, row.started) == (6, 3, True)
    assert report.copied_files == 0
    with started(settings) as plane:
        assert plane.get("/v1/applications/flights")["state"] == "starting"
        lives.live(plane, "flights", inputs, out)
        states = {item["epoch"]: item["state"] for item in plane.get("/v1/applications/flights/epochs")["items"]}
    assert states == dict.fromkeys(range(1, 9), "committed")
    assert lives.shown(out) == {number: [number * (number + 1) // 2] for number in range(1, 9)}


def test_a_restore_over_a_living_installation_is_refused(settings: Settings, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    with started(settings) as plane:
        plane.application()
        plane.driver().epochs(2)
        backed_up(plane, place)
        with pytest.raises(Conflict, match="is not empty: it has rows in"):
            restored(settings, place)
        elsewhere = settings.model_copy(update={"database": f"sqlite:///{tmp_path / 'other.sqlite'}"})
        with pytest.raises(Conflict, match="is in use"):
            Restore(elsewhere, Backups(str(place)), quiet_seconds=3600).run()
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 2
    with started(Settings(data=tmp_path / "strange", port=free_port())) as strange:
        theirs = elsewhere.model_copy(update={"store": strange.settings.store_url})
        with pytest.raises(Conflict, match="belongs to another catalog"):
            restored(theirs, place)


def test_the_catalog_from_before_a_restore_does_not_start_again(settings: Settings, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    with started(settings) as plane:
        plane.application()
        backed_up(plane, place)
    elsewhere = settings.model_copy(update={"database": f"sqlite:///{tmp_path / 'other.sqlite'}"})
    restored(elsewhere, place)
    with pytest.raises(StoreMismatch, match="taken over by a restored catalog"):
        claim_store(Database(settings.database_url), SnapshotStore(settings.store_url))
    with started(elsewhere):
        pass
    with pytest.raises(Conflict, match="after this backup was created"):
        restored(settings.model_copy(update={"database": f"sqlite:///{tmp_path / 'third.sqlite'}"}), place)


@pytest.mark.by_turns(2)
def test_from_sqlite_into_postgresql_and_back(settings: Settings, tmp_path: Path, postgresql_url: str) -> None:
    inputs, first, second = tmp_path / "in", tmp_path / "first", tmp_path / "second"
    lives.write_inputs(inputs, 4)
    with started(settings) as plane:
        plane.application()
        lives.live(plane, "flights", inputs, tmp_path / "out", 2)
        plane.post("/v1/tokens", 201, name="reader", role="viewer")
        backed_up(plane, first)
    server = Settings(data=tmp_path / "server", port=free_port(), database=postgresql_url)
    restored(server, first)
    with started(server) as plane:
        plane.post("/v1/applications/flights/start")
        lives.live(plane, "flights", inputs, tmp_path / "out", 1)
        assert len(plane.get("/v1/audit")["items"]) >= 3  # numbers go on after those that were loaded
        backed_up(plane, second)
    back = Settings(data=tmp_path / "back", port=free_port())
    restored(back, second)
    with started(back) as plane:
        plane.post("/v1/applications/flights/start")
        lives.live(plane, "flights", inputs, tmp_path / "out", 1)
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 4
        with plane.control.database.reading() as session:
            assert all(row.attempt > 2 * LEAP for row in session.scalars(select(Branch)))
    assert lives.shown(tmp_path / "out") == {1: [1], 2: [3], 3: [6], 4: [10]}


def test_a_backup_of_a_later_version_is_refused(plane: Plane, tmp_path: Path) -> None:
    backed_up(plane, tmp_path / "backups")
    backups = Backups(str(tmp_path / "backups"))
    index = backups.index()
    backups.write_index(index.model_copy(update={"revision": "9999"}))
    with pytest.raises(CatalogVersion, match="does not know"):
        restored(Settings(data=tmp_path / "new", port=free_port()), tmp_path / "backups")


def test_drivers_of_the_lost_time_are_fenced_by_sinks(settings: Settings, tmp_path: Path) -> None:
    """Attempts that were made after the backup have numbers that the restored catalog has not given out yet."""
    place, url = tmp_path / "backups", f"sqlite:///{tmp_path / 'sink.sqlite'}"

    def sink() -> SinkBackend:
        store = SnapshotStore(settings.store_url)
        backend = dbms.sink(url=url, table="rows", create=True).make(SinkPlace("out", store))
        backend.check(lives.OUTPUT)
        return backend

    with started(settings) as plane:
        plane.application()
        driver = plane.driver()
        driver.epochs(2)
        backed_up(plane, place)
        for _ in range(3):
            plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", None)
            driver = plane.driver()
        late = EpochScope("flights", EpochKey(driver.point.branch, 2), driver.attempt, None)
        zombie = sink()
        zombie.recover(late)
    shutil.rmtree(settings.data)
    restored(settings, place)
    with started(settings) as plane:
        plane.post("/v1/applications/flights/start")
        new = plane.driver()
        assert new.attempt > LEAP + late.attempt - 3
        sink().recover(EpochScope("flights", EpochKey(new.point.branch, 2), new.attempt, None))
        following = EpochScope("flights", EpochKey(late.branch, 3), late.attempt, late.key)
        with pytest.raises(Fenced):
            zombie.commit(following, ())
