"""Sinks with a server, or with a table, whose process dies at any step of a recovery or commit: all rows of the epoch
are visible or none, and the next attempt completes it. (Files and HDFS: test_backends_files.py, test_hdfs_faults.py.)

The tests in tests/service/fault also kill processes: at one step of each kind in every run, at all steps in the run
of all tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import epochal.backends.dbms
import epochal.backends.kafka
import epochal.backends.postgresql_two_phase
from epochal.faults import FaultPoint, injected
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkHarness
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.databases import DbmsDatabase
from tests.kit.delta_tables import DeltaFolder
from tests.kit.iceberg_tables import sqlite_catalog
from tests.servers.contract.test_kafka_sink import Topic
from tests.servers.contract.test_postgresql_two_phase import TwoPhaseDatabase
from tests.service.fault.points import LOG_POINTS, points_of

WITH_SERVER = {
    "kafka": [*points_of(epochal.backends.kafka), *LOG_POINTS],
    "postgresql": [*points_of(epochal.backends.dbms), *LOG_POINTS],
    "two-phase": points_of(epochal.backends.postgresql_two_phase),
}
TABLES = ["E5.table.loaded", "E5.table.merged", "E5.table.committed"]
WITHOUT_SERVER = {
    "delta": [point for point in TABLES if point != "E5.table.merged"],
    "iceberg": [point for point in TABLES if point != "E5.table.merged"],
    "delta-collecting": [*TABLES, "E5.log.removed"],
    "iceberg-collecting": [*TABLES, "E5.log.removed"],
}
STEPS = [
    pytest.param(sink, point, marks=marks)
    for sinks, marks in ((WITH_SERVER, [pytest.mark.server]), (WITHOUT_SERVER, []))
    for sink, points in sinks.items()
    for point in points
    if not point.startswith("T")
]
PARTLY = ("E5.kafka.chunk-committed", "E5.postgresql.committed-one")
"""Steps between transactions of one epoch (docs/concepts/guarantees.md), which become visible one after the other."""


class Crash(BaseException):
    """Simulated death of the process."""


@pytest.fixture
def harness(
    request: pytest.FixtureRequest, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SinkHarness]:
    if request.param == "kafka":
        settings = {"transaction_records": 1} if step in PARTLY else {}
        yield Topic(request.getfixturevalue("kafka_server"), tmp_path, **settings)
        return
    match request.param:
        case "delta" | "delta-collecting":
            yield DeltaFolder(tmp_path / "orders", collects=request.param != "delta")
            return
        case "iceberg":
            yield sqlite_catalog(tmp_path)
            return
        case "iceberg-collecting":
            yield sqlite_catalog(tmp_path / "tables", store=SnapshotStore(str(tmp_path / "store")))
            return
    kind = DbmsDatabase if request.param == "postgresql" else TwoPhaseDatabase
    database = kind(request.getfixturevalue("postgresql_url"), tmp_path, monkeypatch)
    yield database
    database.close()


@pytest.mark.parametrize(("harness", "step"), STEPS, indirect=["harness"])
@pytest.mark.alternating(2)
def test_next_attempt_recovers_from_a_crash_at_any_step(harness: SinkHarness, step: str) -> None:
    first = harness.make()
    first.check(SCHEMA)
    first.recover(epoch(0, parent=0))
    decided = DecidedEpochs()
    decided.commit(first, epoch(1), [pre_commit(first, epoch(1), rows(1))])
    handles = [pre_commit(first, epoch(2), rows(subtask + 2), subtask) for subtask in range(2)]
    harness.end(first)
    crashed = False

    def crash(point: FaultPoint, _epoch: int | None) -> None:
        nonlocal crashed
        if point.name == step and not crashed:
            crashed = True
            raise Crash

    dying = harness.make()
    dying.check(SCHEMA)
    with injected(crash), suppress(Crash):
        dying.recover(epoch(2, attempt=2))
        decided.commit(dying, epoch(2, attempt=2), handles)
    harness.end(dying)
    assert crashed
    if step not in PARTLY:
        assert any(same(harness.visible(), rows(*ids)) for ids in ((1,), (1, 2, 3)))

    successor = harness.make()
    successor.check(SCHEMA)
    successor.recover(epoch(2, attempt=3))
    decided.commit(successor, epoch(2, attempt=3), handles)
    successor.sweep(epoch(2, attempt=3), handles)
    assert same(harness.visible(), rows(1, 2, 3))
    decided.commit(successor, epoch(3, attempt=3), [pre_commit(successor, epoch(3, attempt=3), rows(4))])
    assert same(harness.visible(), rows(1, 2, 3, 4))
    assert harness.leftovers() == []


@pytest.mark.parametrize(
    ("harness", "step"),
    [("delta", "T3.table.uploaded"), ("iceberg", "T3.iceberg.uploaded")],
    indirect=["harness"],
)
def test_files_of_a_task_that_dies_after_their_upload_are_never_visible(harness: SinkHarness, step: str) -> None:
    decided, crashed = DecidedEpochs(), []
    first = harness.make()
    first.check(SCHEMA)
    first.recover(epoch(0, parent=0))

    def crash(point: FaultPoint, _epoch: int | None) -> None:
        if point.name == step and not crashed:
            crashed.append(point)
            raise Crash

    with injected(crash), pytest.raises(Crash):
        pre_commit(first, epoch(1), rows(1, 2))
    assert len(harness.leftovers()) == 1
    again = pre_commit(first, epoch(1), rows(1, 2))
    decided.commit(first, epoch(1), [again])
    first.sweep(epoch(1), [again])
    assert same(harness.visible(), rows(1, 2))
    assert harness.leftovers() == []
