"""Every step has a fault point, and every fault point has a test that comes to it."""

from __future__ import annotations

import pytest

import epochal.backends
import epochal.engine
import epochal.service.catalog
from tests.servers.fault import test_dbms, test_hdfs, test_kafka
from tests.service.fault import test_kills
from tests.service.fault.points import BY_PREFIX, ELSEWHERE, all_declared, is_named_in, where

STEPS = {
    "files": {"R1", "T3", "E5"},
    "hdfs": {"R1", "T3", "E5"},
    "kafka": {"R1", "E5"},
    "dbms": {"R1", "T2", "T3", "E5"},
    "postgresql": {"R1", "T1", "T3", "E5"},
    "log": {"T3", "E5"},
}
"""By sink, the steps of its protocol that do something at the target; Kafka's tasks write to the log."""


def killed_at() -> set[str]:
    """Where a driver or a task is killed, each of which must fire."""
    sinks = {*test_kafka.POINTS, *test_hdfs.POINTS, *test_dbms.POINTS}
    return sinks | {life.point for life in test_kills.LIVES} | set(test_kills.task_points())


def declared_here() -> set[str]:
    """Of the engine, the backends and the catalog: other resources of the service look after theirs."""
    names = all_declared(epochal.engine, epochal.backends, epochal.service.catalog)
    others = ("A", "B", "G", "V", "W", "export.", "import.", "rollback.", "rekey.")
    return {name for name in names if not name.startswith(others)}


def test_every_point_is_met_somewhere() -> None:
    assert {name for name in declared_here() if where(name) is None} == killed_at()


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_what_is_met_elsewhere_is_named_there(name: str) -> None:
    assert name in declared_here()
    assert is_named_in(name, ELSEWHERE[name])


@pytest.mark.parametrize("prefix", sorted(BY_PREFIX))
def test_what_is_met_by_its_prefix_has_a_test(prefix: str) -> None:
    resource = {"catalog.": "WRITES"}.get(prefix, prefix)
    assert is_named_in(resource, BY_PREFIX[prefix])


@pytest.mark.parametrize("sink", sorted(STEPS))
def test_every_step_of_a_sink_has_a_point(sink: str) -> None:
    names = [name.split(".") for name in declared_here()]
    assert {name[0] for name in names if name[1] == sink} == STEPS[sink]
