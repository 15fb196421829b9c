"""Control planes come and go, and what they run goes on: nothing is lost, repeated or restarted without need."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.servers import ServerUnavailable
from tests.service.availability.history import Plan, Report, run

pytestmark = [pytest.mark.slow, pytest.mark.server]


def lived(plan: Plan, folder: Path) -> Report:
    try:
        report = run(plan, folder)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    assert report.problems == [], f"seed {plan.seed}"
    assert report.epochs and report.lookups
    return report


@pytest.mark.long  # who leads: simulation/test_control_planes.py; what two answer: service/test_two_control_planes.py
def test_a_short_history(tmp_path: Path) -> None:
    """Of two control planes the one that leads is killed; so is the database."""
    kinds = ("leader killed", "database away")
    report = lived(Plan(seed=1, nodes=2, applications=2, faults=2, kinds=kinds, settle_seconds=1), tmp_path)
    assert report.faults.total() == 2 and len(report.supervision_back_seconds) == 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_histories(tmp_path: Path, seed: int) -> None:
    lived(Plan(seed=seed, faults=12), tmp_path)
