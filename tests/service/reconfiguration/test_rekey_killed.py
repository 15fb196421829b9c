"""The control plane is killed during a trial, and at ``rekey.begun``, ``rekey.written`` and ``rekey.moved``. The
next one repeats these operations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

import pytest

from epochal.client.models import Preflight
from epochal.errors import EpochalError
from epochal.faults import ENVIRONMENT, Fault
from epochal.service.commands import rekey as points
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.kit.stores import snapshot_files
from tests.service.reconfiguration.conftest import Sensors

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
POINTS = (points.BEGUN, points.WRITTEN, points.MOVED)


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane is killed once at each of the steps."""
    folder = tmp_path_factory.mktemp("offline")
    faults = [asdict(Fault(point.name, "kill", once=str(folder / point.name))) for point in POINTS]
    with control_plane(folder, {ENVIRONMENT: json.dumps(faults)}) as plane:
        yield plane


def test_trial_and_rekey_survive_a_killed_control_plane(sensors: Sensors, plane: ControlPlane) -> None:
    sensors.feed(46)
    sensors.feed(46)
    trial = sensors.handle.versions.trial(1)
    plane.restart(kill=True)
    report = Preflight.model_validate(sensors.done(trial).result)
    assert report.trial is not None and report.trial.same

    sensors.done(sensors.client.applications.stop(sensors.name))
    before = sensors.client.applications.get(sensors.name)
    with suppress(EpochalError):  # it may be killed before it answers
        sensors.handle.versions.rekey(32)
    for point in POINTS:
        plane.process.wait_for_end(120)
        assert (plane.home.parent / point.name).exists()
        plane.restart()
        if point != points.MOVED:
            assert sensors.client.applications.get(sensors.name) == before
    rekey = next(operation for operation in sensors.client.operations.list() if operation.kind == "rekey")
    result = sensors.done(rekey).result
    after = sensors.client.applications.get(sensors.name)
    assert result is not None and after.version == result["version"] == before.version + 1
    branches = {path.split("/")[0] for path in snapshot_files(SnapshotStore(str(plane.home / "store")))}
    assert branches == {before.branch, after.branch}
    sensors.done(sensors.client.applications.start(sensors.name))
    sensors.feed(46)
    sensors.check()
