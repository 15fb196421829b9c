"""A pytest plugin: the seed of a run, tests that alternate between runs, and samples with a time limit.

A test marked ``alternating(n)`` is a usual test in one of ``n`` runs, selected by the seed, and ``long`` in all others.
Samples and ``make test-all`` therefore include it.

``--seed`` determines every random choice of a run: the sample, Hypothesis's examples and ``run_seed``. The default is
derived from the commit, so that a commit is tested in the same way on every machine.
"""

from __future__ import annotations

import random
import subprocess
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.kit.lengths import Lengths
from tests.kit.workers import cores

Item = TypeVar("Item")

SEED = pytest.StashKey[int]()
END = pytest.StashKey[float]()
"""Deadline of the last test of a sample, in seconds since the epoch."""
STARTING_SECONDS = 40.0
"""Start-up time of the workers, and of servers and sessions that many tests share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("epochal")
    group.addoption("--seed", type=int, help="seed of the random choices; derived from the commit by default")
    group.addoption("--sample-seconds", type=float, help="run a sample that fits into this time; the seed selects it")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    above: dict[str, Any] = getattr(config, "workerinput", {})
    seed = config.getoption("seed")
    config.stash[SEED] = above["seed"] if above else _seed_of_the_commit() if seed is None else seed
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = config.stash[SEED]
    seconds = config.getoption("sample_seconds")
    if seconds is not None:
        config.stash[END] = above["end"] if above else time.time() + seconds


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed and the deadline to a new xdist worker."""
    node.workerinput["seed"] = node.config.stash[SEED]
    node.workerinput["end"] = node.config.stash.get(END, 0.0)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[SEED]} (--seed repeats it)"


def pytest_itemcollected(item: pytest.Item) -> None:
    marker = item.get_closest_marker("alternating")
    if marker is not None and not is_selected(item.nodeid, item.config.stash[SEED], *marker.args):
        item.add_marker(pytest.mark.long)


def is_selected(test: str, seed: int, turns: int) -> bool:
    """Return whether the test with this id is a usual one in the run of this seed: true for one of ``turns``
    successive seeds."""
    return (zlib.crc32(test.encode()) + seed) % turns == 0


@pytest.hookimpl(trylast=True)  # after the selection by -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds = config.getoption("sample_seconds")
    if seconds is None:
        return
    # Stored durations assume one core per test, which long tests nearly need.
    side_by_side = min(_workers(config), cores())
    chosen = set(sample(items, config.stash[SEED], (seconds - STARTING_SECONDS) * side_by_side, Lengths.read().of))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def sample(items: Sequence[Item], seed: int, seconds: float, length: Callable[[Item], float]) -> list[Item]:
    """Return the items that fit into ``seconds``, considered in the order that the seed determines."""
    chosen = []
    for item in random.Random(seed).sample(items, len(items)):
        if length(item) <= seconds:
            seconds -= length(item)
            chosen.append(item)
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    end = item.config.stash.get(END, None)
    if end is None:
        return
    slower = max(1.0, _workers(item.config) / cores())
    if time.time() + slower * Lengths.read().of(item) > end:
        pytest.skip("this sample's time is over")


def _workers(config: pytest.Config) -> int:
    return int(getattr(config, "workerinput", {}).get("workercount", 1))


@pytest.fixture(scope="session")
def run_seed(request: pytest.FixtureRequest) -> int:
    """The initial seed for random choices in tests; the run's header shows it."""
    return request.config.stash[SEED]


def _seed_of_the_commit() -> int:
    asked = ["git", "rev-parse", "--short=7", "HEAD"]
    try:
        answer = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(answer.stdout.strip()[:7], 16)
