"""The real coordinator, commit queue and recovery, crashed at every numbered step, against a sequential oracle."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from epochal.engine import points
from epochal.faults import FaultPoint
from epochal.testing import simulation

SEEDS = 2_000
CHUNK = 250
NOT_SIMULATED = {
    points.E7_BASE_WRITTEN.name,
    points.E7_BASES_WRITTEN.name,
    points.E5_GIVEN_UP.name,
    points.E1_ASSEMBLED.name,
    points.E1_DRAINED.name,
    points.E1_TAKEN_OVER.name,
    points.E1_SWITCHED.name,
    points.E1_DECIDED.name,
    points.E1_REVERTED.name,
}
"""Compaction has its own tests: its crash leaves a base that no manifest names, nothing else. So have what an
administrator gives up, which no seed does, and reconfigurations (tests/reconfiguration)."""

_fired: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_exactly_once_through_crashes_zombies_and_lost_answers(first: int) -> None:
    for seed in range(first, first + CHUNK):
        world, plan = simulation.run(seed)
        _fired.update(plan.fired)
        assert simulation.violations(world) == [], f"seed {seed}, faults {dict(plan.fired)}"
        assert simulation.leftovers(world) == [], f"seed {seed}, faults {dict(plan.fired)}"
        world.close()


def test_a_fault_fired_at_every_step_of_the_driver() -> None:
    declared = {point.name for point in vars(points).values() if isinstance(point, FaultPoint)}
    assert declared - NOT_SIMULATED <= set(_fired)
