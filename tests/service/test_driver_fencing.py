"""Answers to calls of a driver that was fenced before it received them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.contracts.catalog import DriverStatus, EpochCounts, Failure
from epochal.errors import Fenced

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

LOST = Failure(type="driver-lost", message="no heartbeat")


def declare_lost(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", LOST)


def test_a_repeated_prepare_succeeds_although_the_attempt_is_fenced(plane: Plane) -> None:
    """A driver that received "fenced" would consider its epoch undecided and delete files of a snapshot."""
    plane.application()
    first = plane.driver()
    first.running()
    parent = first.head_key
    number = first.epoch(commit=False)
    manifest = first.head
    assert manifest is not None
    declare_lost(plane, first)
    first.catalog.prepare_epoch(number, parent, manifest, EpochCounts(rows_in=number))
    second = plane.driver()
    first.catalog.prepare_epoch(number, parent, manifest, EpochCounts(rows_in=number))
    second.catalog.commit_epoch(number)
    second.epoch()
    first.catalog.prepare_epoch(number, parent, manifest, EpochCounts(rows_in=number))
    with pytest.raises(Fenced):
        first.catalog.commit_epoch(number)


def test_a_late_prepare_is_fenced(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    first.running()
    first.epoch()
    parent = first.head_key
    number = 2
    first.catalog.open_epoch(number, parent)
    late = first.manifest(number)
    declare_lost(plane, first)
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
