"""What a version that takes the place of another one brings along. Its way there is told by tests/reconfiguration."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.contracts.catalog import Directive, VersionOrder
from epochal.engine.answers import Answers
from epochal.engine.bases import PendingBases
from epochal.engine.commits import CommitQueue
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.execution import ordered
from epochal.engine.job import EpochPlan, EpochRunner, Participants
from epochal.engine.operators import PipelinePlan
from epochal.engine.position import Position
from epochal.engine.program import Program
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.retention import Retention
from epochal.engine.settings import Configuration, ExecutionOrders
from epochal.errors import EpochAborted
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.waiting import eventually

BEFORE = Configuration(parallelism=2, compact_after_epochs=3, compact_on_spark_bytes=1 << 30)
AFTER = Configuration(parallelism=8, compact_after_epochs=5, compact_on_spark_bytes=1)


class EmptyEpochs(EpochRunner):
    """Runs epochs of a pipeline in which nothing is; ``fails`` aborts them."""

    fails = False

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        if self.fails:
            raise EpochAborted("It was told to fail.")
        return Answers(operators={}, sinks=[], silent_partitions=[], partitions=0)

    def deltas(self, handle: object) -> tuple[DeltaFile, ...]:
        return ()


@pytest.mark.parametrize("fails", [False, True])
def test_the_compaction_goes_by_the_version_in_place(tmp_path: Path, fails: bool) -> None:
    orders = ExecutionOrders(
        application="flights",
        execution="one",
        attempt=1,
        artifact="a" * 64,
        configuration=BEFORE,
        version=1,
        store=str(tmp_path / "store"),
        cache_directory=str(tmp_path / "cache"),
    )
    store, catalog, runner = SnapshotStore(orders.store), MemoryCatalog(MemoryCatalogState(), 1), EmptyEpochs()
    point = catalog.begin_attempt()
    program = Program(orders, Graph("flights", ()), PipelinePlan({}, {}), Participants())
    queue = CommitQueue(catalog, program.participants, 3)
    position, bases = Position(point.branch, 1, None), PendingBases()
    coordinator = Coordinator(orders, catalog, store, runner, program.participants, queue, position, bases)
    compaction = Compaction(store, position, bases, BEFORE)
    queue.retain = retention = Retention(store, program.participants, compaction)

    def assembled(order: VersionOrder) -> Program:
        return Program(ordered(orders, order), program.graph, program.plan, program.participants)

    def run_epoch() -> None:
        runner.fails = fails and coordinator.orders.version == 2
        coordinator.run_epoch({})

    reconfigurations = Reconfigurations(
        coordinator, queue, retention, catalog, program, assembled, lambda _: runner, lambda _: None
    )
    run_epoch()
    order = VersionOrder(
        version=2,
        artifact=orders.artifact,
        location="",
        configuration=AFTER.model_dump(mode="json"),
        by="somebody",
    )
    reconfigurations.take(Directive(id="d", kind="reconfigure", arguments=order.model_dump(mode="json")))
    eventually(lambda: reconfigurations.ready)
    reconfigurations.carry_out(lambda: None, run_epoch)
    assert compaction.configuration == (BEFORE if fails else AFTER)
    assert coordinator.orders.configuration == compaction.configuration
