"""Division of a test run: samples within a time budget, recorded lengths, workers and their files."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.lengths import written
from tests.kit.sampling import END, SEED, is_selected, pytest_itemcollected, pytest_runtest_setup, sample
from tests.kit.workers import unit_of, workers

LENGTHS = st.lists(st.integers(1, 100), max_size=30)


@given(LENGTHS, st.integers(0, 300), st.integers())
def test_a_sample_fits_and_no_other_test_would_fit(lengths: list[int], seconds: int, seed: int) -> None:
    items = range(len(lengths))
    chosen = sample(items, seed, seconds, lengths.__getitem__)
    left = seconds - sum(lengths[item] for item in chosen)
    assert left >= 0
    assert all(lengths[item] > left for item in set(items) - set(chosen))
    assert len(set(chosen)) == len(chosen)
    assert sample(items, seed, seconds, lengths.__getitem__) == chosen


def test_other_seeds_choose_other_tests() -> None:
    assert len({tuple(sample(range(40), seed, 10, lambda _: 1)) for seed in range(5)}) == 5


@given(st.text(), st.integers(0, 2**28), st.integers(1, 5))
def test_alternating_tests_run_for_one_of_n_successive_seeds(test: str, seed: int, runs: int) -> None:
    assert sum(is_selected(test, each, runs) for each in range(seed, seed + runs)) == 1


def test_alternating_tests_that_are_not_selected_are_marked_long(request: pytest.FixtureRequest) -> None:
    seed = request.config.stash[SEED]
    first, second = (
        pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None) for name in ("one", "other")
    )
    period = next(runs for runs in range(2, 1000) if not is_selected(first.nodeid, seed, runs))
    first.add_marker(pytest.mark.alternating(period))
    second.add_marker(pytest.mark.alternating(1))
    for item in (first, second):
        pytest_itemcollected(item)
    assert [item.get_closest_marker("long") is not None for item in (first, second)] == [True, False]


def test_tests_beyond_the_time_budget_are_skipped(request: pytest.FixtureRequest) -> None:
    stash = request.config.stash
    before = stash.get(END, math.inf)
    try:
        stash[END] = time.time() + 60
        pytest_runtest_setup(request.node)
        stash[END] = time.time()
        with pytest.raises(pytest.skip.Exception, match="this sample's time is over"):
            pytest_runtest_setup(request.node)
    finally:
        stash[END] = before


def test_negligible_lengths_are_not_recorded() -> None:
    averages = {
        "tests/b.py": {"usual": 0.04},
        "tests/a.py": {"usual": 0.0, "long": 61.2},
        "tests/c.py": {"usual": 0.05},
    }
    text = written(averages)
    assert json.loads(text) == {"tests/a.py": {"long": 61.2}, "tests/c.py": {"usual": 0.05}}
    assert text.splitlines()[1:-1] == ['  "tests/a.py": {"long": 61.2},', '  "tests/c.py": {"usual": 0.05}']


@pytest.mark.parametrize(("cores", "gigabytes", "expected"), [(2, 23, 4), (2, 12, 3), (2, 8, 2), (8, 32, 8), (4, 2, 1)])
def test_the_number_of_workers_is_limited_by_memory_and_cores(cores: int, gigabytes: int, expected: int) -> None:
    assert workers(cores, gigabytes << 30) == expected


def test_files_that_share_a_server_or_a_jvm_run_in_one_worker() -> None:
    assert (
        unit_of("tests/servers/fault/test_kafka.py")
        == unit_of("tests/servers/contract/test_kafka_sink.py")
        == "servers"
    )
    assert unit_of("tests/spark/test_harness.py") == unit_of("tests/spark/test_overflow.py") == "spark, single modules"
    assert unit_of("tests/servers/contract/test_dbms_source.py") == unit_of("tests/service/end_to_end/test_docs.py")
    assert (
        unit_of("tests/service/fault/test_author_errors.py")
        == unit_of("tests/service/fault/test_kills_with_spark.py")
        == "new_application"
    )
    assert (
        unit_of("tests/servers/fault/test_hdfs.py")
        == unit_of("tests/servers/contract/test_hdfs_source.py")
        == "servers"
    )
    assert unit_of("tests/unit/test_sampling.py") == "tests/unit/test_sampling.py"
