"""What a driver is told that was fenced while it waited for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.contracts.catalog import DriverStatus, EpochCounts, Failure
from epochal.errors import Fenced

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

LOST = Failure(type="driver-lost", message="not heard")


def given_up(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", LOST)


def test_a_prepare_that_had_landed_stays_landed(plane: Plane) -> None:
    """Were it answered "fenced", the driver would take its epoch for undecided and remove the files of a snapshot."""
    plane.application()
    first = plane.driver()
    first.running()
    parent = first.head_key
    number = first.epoch(commit=False)
    manifest = first.head
    assert manifest is not None
    given_up(plane, first)
    first.catalog.prepare_epoch(number, parent, manifest, EpochCounts(rows_in=number))
    second = plane.driver()
    first.catalog.prepare_epoch(number, parent, manifest, EpochCounts(rows_in=number))
    second.catalog.commit_epoch(number)
    second.epoch()
    first.catalog.prepare_epoch(number, parent, manifest, EpochCounts(rows_in=number))
    with pytest.raises(Fenced):
        first.catalog.commit_epoch(number)


def test_a_prepare_that_had_not_landed_is_fenced(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    first.running()
    first.epoch()
    parent = first.head_key
    number = 2
    first.catalog.open_epoch(number, parent)
    late = first.manifest(number)
    given_up(plane, first)
    with pytest.raises(Fenced):
        first.catalog.prepare_epoch(number, parent, late, EpochCounts())
    second = plane.driver()
    assert [record.epoch for record in second.point.started] == [number]
    second.catalog.abort_epoch(number, LOST)
    second.epoch()
    with pytest.raises(Fenced):
        first.catalog.prepare_epoch(number, parent, late, EpochCounts())
    with pytest.raises(Fenced):
        first.catalog.heartbeat(DriverStatus(phase="running"))
