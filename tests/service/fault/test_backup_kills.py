"""Killed at each step of a backup and of a restore: begun again they go on, and nothing half-made passes for whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from epochal.errors import Conflict, NotFound
from epochal.faults import Fault
from epochal.service.catalog.database import Database
from epochal.service.commands.restore import Restore
from epochal.service.domain.settings import Settings
from epochal.service.runtime.store_claim import StoreMismatch, claim_store
from epochal.snapshots.backup_format import Backups
from epochal.snapshots.backup_maintenance import verify_backup
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import planned
from tests.kit.catalogs import new_sqlite_catalog
from tests.service.fault.planes import Doomed, living
from tests.service.fault.points import in_every_run
from tests.service.fault.test_going_back_and_moving import finished, with_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BACKUPS = ("B1.dumped", "B2.file-copied", "B3.listed", "B4.indexed")
RESTORES = ("A2.given", "A3.file-copied", "A4.loaded", "A4.landed")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("point", in_every_run(["B2.file-copied"], BACKUPS))
def test_a_backup_is_begun_again(settings: Settings, tmp_path: Path, doomed: Doomed, point: str) -> None:
    place = tmp_path / "backups"
    with living(settings) as plane:
        with_state(plane)
    with doomed(settings, point) as client, suppress(httpx.TransportError):
        client.post("/v1/backups", json={"to": str(place)})
    if point != "B4.indexed":
        with pytest.raises(NotFound):
            Backups(str(place)).index()
    there = len(Backups(str(place)).files.list(""))
    with living(settings) as plane:
        done = finished(plane, "backup")
        assert done["state"] == "succeeded", done["error"]
    backups = Backups(str(place))
    assert backups.ids() == [done["id"]]
    assert verify_backup(backups, backups.index(), quick=False).is_sound
    if point in ("B3.listed", "B4.indexed"):
        assert there == done["result"]["files"]["files"]
        assert done["result"]["copied"]["files"] < there  # deltas are not copied again


@pytest.mark.parametrize("point", in_every_run(["A3.file-copied", "A4.landed"], RESTORES))
@pytest.mark.by_turns(2)
def test_a_restore_goes_on_when_it_is_called_again(settings: Settings, tmp_path: Path, point: str) -> None:
    place = tmp_path / "backups"
    with living(settings) as plane:
        with_state(plane)
        plane.post("/v1/backups", to=str(place))
        done = finished(plane, "backup")
    shutil.rmtree(settings.data)
    settings.data.mkdir()
    command = [sys.executable, "-m", "epochal.cli.main", "backup", "restore", "--from", str(place)]
    command += ["--home", str(settings.data)]
    killed = subprocess.run(command, env=os.environ | planned([Fault(point, "kill")]), cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    database = Database(new_sqlite_catalog(tmp_path / "impatient.sqlite"))
    with pytest.raises(StoreMismatch, match="Run the same `epochal backup restore` again"):
        claim_store(database, SnapshotStore(settings.store_url))
    database.close()
    with pytest.raises(Conflict, match=r"occupies the store|is not empty"):
        _another(settings, place, done["id"])
    report = Restore(settings, Backups(str(place)), done["id"], quiet_seconds=0).run()
    assert report.resumed == (point == "A4.landed")
    with living(settings) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
        plane.post("/v1/verifications")
        assert finished(plane, "verify")["result"]["sound"]


def _another(settings: Settings, place: Path, id: str) -> None:
    """Another backup of the same installation, into what a killed restore has left."""
    backups = Backups(str(place))
    index = backups.index(id)
    backups.write_index(index.model_copy(update={"id": "f" * 32}))
    try:
        Restore(settings, backups, "f" * 32, quiet_seconds=0).run()
    finally:
        backups.place.delete(f"backups/{'f' * 32}/index.json")
