"""The driver is killed at every step of a reconfiguration: one of the versions continues, and state and output are
exact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from epochal.engine import points
from epochal.errors import EpochalError
from epochal.faults import ENVIRONMENT, Fault
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.service.reconfiguration.conftest import BY_SENSOR, RAISING, Sensors

UNDECIDED = (points.E1_ASSEMBLED, points.E1_DRAINED, points.E1_TAKEN_OVER, points.E1_SWITCHED)
RESTARTS = {"restart": {"max_restarts": 50, "backoff_seconds": 0.0}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Its drivers are killed once at each of the steps, one in each reconfiguration."""
    folder = tmp_path_factory.mktemp("killed")
    faults = [
        asdict(Fault(point.name, "kill", once=str(folder / point.name)))
        for point in (*UNDECIDED, points.E1_DECIDED, points.E1_REVERTED)
    ]
    with control_plane(folder, {ENVIRONMENT: json.dumps(faults)}) as plane:
        yield plane


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("configuration", [RESTARTS])
def test_reconfiguration_survives_killed_drivers(sensors: Sensors, plane: ControlPlane) -> None:
    flags: Path = plane.home.parent
    sensors.feed(46)
    for point in UNDECIDED:
        with pytest.raises(EpochalError, match="The driver ended before version"):
            sensors.done(sensors.handle.versions.rescale(4))
        assert (flags / point.name).exists()
        sensors.feed(46)
        sensors.check()
        assert sensors.client.applications.get(sensors.name).configuration["parallelism"] == 2

    decided = sensors.done(sensors.handle.versions.rescale(3))
    assert (flags / points.E1_DECIDED.name).exists()
    assert decided.result is not None
    sensors.feed(46)
    sensors.check()
    assert sensors.handle.snapshots.get(sensors.head()).parallelism == 3

    version = sensors.handle.versions.create(sensors.artifact(RAISING), accept_changed=BY_SENSOR)
    assert version.operation is not None
    with pytest.raises(EpochalError, match="The driver ended before version"):
        sensors.done(version.operation)
    assert (flags / points.E1_REVERTED.name).exists()
    sensors.feed(46)
    sensors.check()
    given_up = [item.number for item in sensors.handle.versions.list() if item.failure is not None]
    assert len(given_up) == len(UNDECIDED) + 1
