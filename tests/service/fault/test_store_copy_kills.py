"""Kills at each step of ``epochal store copy``: exactly one of the two stores can be used, and the repeated command
continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.faults import Fault
from epochal.service.catalog.database import Database
from epochal.service.commands.store_copy import StoreCopy
from epochal.service.domain.settings import Settings
from epochal.service.runtime.store_claim import StoreMismatch, check_store
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import planned
from tests.service.fault.planes import running_plane
from tests.service.fault.points import in_every_run
from tests.service.fault.test_rollback_and_move_kills import finished, stop, with_state
from tests.service.lookups import DELAYS, StateDriver, route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

POINTS = ("M2.marked", "M3.file-copied", "M4.switched", "M4.landed", "M5.replaced")
LANDED = ("M4.landed", "M5.replaced")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("point", in_every_run(["M3.file-copied", "M4.landed"], POINTS))
@pytest.mark.alternating(2)
def test_killed_copy_continues_when_it_is_repeated(settings: Settings, tmp_path: Path, point: str) -> None:
    target = str(tmp_path / "new-store")
    with running_plane(settings) as plane:
        stop(plane, with_state(plane))
    command = [sys.executable, "-m", "epochal.cli.main", "store", "copy", "--to", target, "--home", str(settings.data)]
    killed = subprocess.run(command, env=os.environ | planned([Fault(point, "kill")]), cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    moved = settings.model_copy(update={"store": target})
    used, refused = (moved, settings) if point in LANDED else (settings, moved)
    check_refused(refused, "is an incomplete copy of" if refused is moved else f"EPOCHAL_STORE={target}")
    with running_plane(used) as plane:
        plane.post("/v1/applications/flights/start")
        driver = StateDriver(plane, tables=(DELAYS,))
        assert driver.epoch((DELAYS, [route("JFK", "LAX", 6, 1.0)])) == 6
        stop(plane, driver)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    check_refused(settings, f"EPOCHAL_STORE={target}")
    with running_plane(moved) as plane:
        assert plane.get("/v1/applications/flights")["head"]["epoch"] == 6
        plane.post("/v1/verifications")
        found = finished(plane, "verify")["result"]
        assert found["sound"] and found["snapshots"] == 6, found
    assert StoreCopy(settings, target).run().resumed


def check_refused(settings: Settings, match: str) -> None:
    database = Database(settings.database_url)
    with pytest.raises(StoreMismatch, match=match):
        check_store(database, SnapshotStore(settings.store_url))
    database.close()
