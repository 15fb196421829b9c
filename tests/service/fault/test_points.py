"""Every step has a fault point, and every fault point has a test that hits it."""

from __future__ import annotations

import pytest

import epochal.backends
import epochal.engine
import epochal.service.catalog
from tests.servers.fault import test_dbms, test_hdfs, test_kafka, test_object_files
from tests.service.fault import test_kills
from tests.service.fault.points import BY_PREFIX, TESTED_ELSEWHERE, all_declared, covered_in, is_named_in

STEPS = {
    "files": {"R1", "T3", "E5"},
    "hdfs": {"R1", "T3", "E5"},
    "objects": {"R1", "T3", "E5"},
    "kafka": {"R1", "E5"},
    "dbms": {"R1", "T2", "T3", "E5"},
    "postgresql": {"R1", "T1", "T3", "E5"},
    "log": {"T3", "E5"},
}
"""Steps of each sink's protocol that act on the target; tasks of Kafka write to the log."""


def killed_points() -> set[str]:
    """Points at which a driver or a task is killed; each must fire."""
    sinks = {*test_kafka.POINTS, *test_hdfs.POINTS, *test_object_files.POINTS, *test_dbms.POINTS}
    return sinks | {life.point for life in test_kills.LIVES} | set(test_kills.task_points())


def declared_points() -> set[str]:
    """Points of the engine, the backends and the catalog. Other resources of the service test their own points."""
    names = all_declared(epochal.engine, epochal.backends, epochal.service.catalog)
    others = ("A", "B", "G", "M", "V", "W", "export.", "import.", "rollback.", "rekey.")
    return {name for name in names if not name.startswith(others)}


def test_every_fault_point_has_a_test() -> None:
    assert {name for name in declared_points() if covered_in(name) is None} == killed_points()


@pytest.mark.parametrize("name", sorted(TESTED_ELSEWHERE))
def test_fault_points_tested_elsewhere_are_named_in_the_listed_test(name: str) -> None:
    assert name in declared_points()
    assert is_named_in(name, TESTED_ELSEWHERE[name])


@pytest.mark.parametrize("prefix", sorted(BY_PREFIX))
def test_fault_points_listed_by_prefix_have_a_test(prefix: str) -> None:
    resource = {"catalog.": "WRITES"}.get(prefix, prefix)
    assert is_named_in(resource, BY_PREFIX[prefix])


@pytest.mark.parametrize("sink", sorted(STEPS))
def test_every_step_of_a_sink_has_a_fault_point(sink: str) -> None:
    names = [name.split(".") for name in declared_points()]
    assert {name[0] for name in names if name[1] == sink} == STEPS[sink]
