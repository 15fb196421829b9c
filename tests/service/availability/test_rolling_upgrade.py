"""A rolling upgrade of three control planes, from the last release to this tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.servers import ServerUnavailable
from tests.service.availability.builds import build_after, build_before
from tests.service.availability.history import Plan
from tests.service.availability.rolling import run

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long]


def test_a_rolling_upgrade_under_load_loses_nothing(tmp_path: Path) -> None:
    """No call fails, no driver restarts, no epoch is lost or duplicated, no look-up returns older state, and every
    operation and event is reported once."""
    before, after = build_before(tmp_path / "before"), build_after(tmp_path / "after")
    try:
        report = run(Plan(seed=1, applications=6), tmp_path, before, after)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    assert report.problems == []
    assert report.epochs and report.lookups and report.operations and report.events
