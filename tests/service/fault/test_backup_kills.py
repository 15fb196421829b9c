"""Kills at each step of a backup and of a restore: the repeated command continues, and partial results are not
accepted."""

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
from tests.service.fault.planes import KilledPlane, running_plane
from tests.service.fault.points import in_every_run
from tests.service.fault.test_rollback_and_move_kills import finished, with_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BACKUPS = ("B1.dumped", "B2.file-copied", "B3.listed", "B4.indexed")
RESTORES = ("A2.given", "A3.file-copied", "A4.loaded", "A4.landed")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("point", in_every_run(["B2.file-copied"], BACKUPS))
def test_killed_backup_is_repeated(settings: Settings, tmp_path: Path, killed_plane: KilledPlane, point: str) -> None:
    folder = tmp_path / "backups"
    with running_plane(settings) as plane:
        with_state(plane)
    with killed_plane(settings, point) as client, suppress(httpx.TransportError):
        client.post("/v1/backups", json={"to": str(folder)})
    if point != "B4.indexed":
        with pytest.raises(NotFound):
            Backups(str(folder)).index()
    copied_before = len(Backups(str(folder)).files.list(""))
    with running_plane(settings) as plane:
        done = finished(plane, "backup")
        assert done["state"] == "succeeded", done["error"]
    backups = Backups(str(folder))
    assert backups.ids() == [done["id"]]
    assert verify_backup(backups, backups.index(), quick=False).is_sound
    if point in ("B3.listed", "B4.indexed"):
        assert copied_before == done["result"]["files"]["files"]
        assert done["result"]["copied"]["files"] < copied_before  # deltas are not copied again


@pytest.mark.parametrize("point", in_every_run(["A3.file-copied", "A4.landed"], RESTORES))
@pytest.mark.alternating(2)
def test_killed_restore_continues_when_it_is_repeated(settings: Settings, tmp_path: Path, point: str) -> None:
    folder = tmp_path / "backups"
    with running_plane(settings) as plane:
        with_state(plane)
        plane.post("/v1/backups", to=str(folder))
        done = finished(plane, "backup")
    shutil.rmtree(settings.data)
    settings.data.mkdir()
    command = [sys.executable, "-m", "epochal.cli.main", "backup", "restore", "--from", str(folder)]
    command += ["--home", str(settings.data)]
    killed = subprocess.run(command, env=os.environ | planned([Fault(point, "kill")]), cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    database = Database(new_sqlite_catalog(tmp_path / "impatient.sqlite"))
    with pytest.raises(StoreMismatch, match="Run the same `epochal backup restore` again"):
        claim_store(database, SnapshotStore(settings.store_url))
    database.close()
    with pytest.raises(Conflict, match=r"occupies the store|is not empty"):
        _restore_another(settings, folder, done["id"])
    report = Restore(settings, Backups(str(folder)), done["id"], quiet_seconds=0).run()
    assert report.resumed == (point == "A4.landed")
    with running_plane(settings) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 5
        plane.post("/v1/verifications")
        assert finished(plane, "verify")["result"]["sound"]


def _restore_another(settings: Settings, folder: Path, id: str) -> None:
    """Restore another backup of the same installation over a partial restore."""
    backups = Backups(str(folder))
    index = backups.index(id)
    backups.write_index(index.model_copy(update={"id": "f" * 32}))
    try:
        Restore(settings, backups, "f" * 32, quiet_seconds=0).run()
    finally:
        backups.place.delete(f"backups/{'f' * 32}/index.json")
