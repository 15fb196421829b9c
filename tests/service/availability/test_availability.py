"""Applications continue without loss, duplicates and needless restarts while control planes fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.servers import ServerUnavailable
from tests.service.availability.history import Plan, Report, run

pytestmark = [pytest.mark.slow, pytest.mark.server]


def run_history(plan: Plan, folder: Path) -> Report:
    try:
        report = run(plan, folder)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    assert report.problems == [], f"seed {plan.seed}"
    assert report.epochs and report.lookups
    return report


@pytest.mark.long  # its parts: simulation/test_control_planes.py, service/test_two_control_planes.py
def test_applications_continue_after_a_kill_of_leader_and_database(tmp_path: Path) -> None:
    """The leader of two control planes and the database are killed."""
    kinds = ("leader killed", "database away")
    report = run_history(Plan(seed=1, nodes=2, applications=2, faults=2, kinds=kinds, settle_seconds=1), tmp_path)
    assert report.faults.total() == 2 and len(report.takeover_seconds) == 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_applications_continue_under_random_faults(tmp_path: Path, seed: int) -> None:
    run_history(Plan(seed=seed, faults=12), tmp_path)
