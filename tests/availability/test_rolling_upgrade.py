"""From the version before to this one, without anybody's noticing."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.servers import ServerUnavailable
from tests.availability.checkout import NoSuchCommit, previous_checkout, this_checkout
from tests.availability.history import Plan
from tests.availability.rolling import run

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long]


def test_a_rolling_upgrade_under_load(tmp_path: Path) -> None:
    """No call of a client fails, no driver is restarted, no epoch is lost or comes twice, nothing that was read goes
    back, every operation ends once, every event comes once."""
    try:
        before = previous_checkout(tmp_path / "before")
        report = run(Plan(seed=1, applications=6), tmp_path, before, this_checkout())
    except NoSuchCommit as reason:
        pytest.skip(str(reason))
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    assert report.problems == []
    assert report.epochs and report.lookups and report.operations and report.events
