"""Control planes under a simulated clock: one leads, healthy drivers keep running, dead drivers are replaced."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.service.catalog import types
from tests.simulation.control_planes import NodeClock, simulated

SEEDS = 2_000
SAMPLE = 5
CHUNK = 25


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(types, "datetime", NodeClock)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check(seed: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    with simulated(seed, folder) as world:
        world.run()
        assert world.violations == [], f"seed {seed}\n" + "\n".join(world.log_lines)


def test_one_leads_and_healthy_drivers_keep_running(run_seed: int, tmp_path: Path) -> None:
    for seed in random.Random(run_seed).sample(range(SEEDS), SAMPLE):
        check(seed, tmp_path / str(seed))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_one_leads_and_healthy_drivers_keep_running_for_every_seed(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        check(seed, tmp_path / str(seed))
