"""The real coordinator, commit queue and recovery, crashed at every step, compared with a sequential oracle."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Set

import pytest

from epochal.engine import points
from epochal.faults import FaultPoint
from tests.kit.simulation import simulation

SEEDS = 2_000
SAMPLE = 50
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
"""tests/service/fault/test_kills.py crashes compaction over real state. Seeds contain no reconfiguration, and no epoch
given up by an administrator: see tests/service/fault/points.py."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def fired(seed: int) -> Set[str]:
    """Run a seed and check its world. Returns the points at which a fault was injected."""
    world, plan = simulation.run(seed)
    assert simulation.violations(world) == [], f"seed {seed}, faults {dict(plan.fired)}"
    assert simulation.leftovers(world) == [], f"seed {seed}, faults {dict(plan.fired)}"
    world.close()
    return plan.fired.keys()


@pytest.mark.claim("Thesis, 3.4.2")
def test_exactly_once_through_crashes_zombies_and_lost_answers(run_seed: int) -> None:
    """A sample of the seeds, and further seeds until a fault has fired at every step of the driver."""
    missing = {point.name for point in vars(points).values() if isinstance(point, FaultPoint)} - NOT_SIMULATED
    for seed in random.Random(run_seed).sample(range(SEEDS), SAMPLE):
        missing -= fired(seed)
    for seed in range(SEEDS):
        if not missing:
            return
        missing -= fired(seed)
    assert missing == set()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_exactly_once_for_every_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        fired(seed)
