"""State and offsets that a new version inherits. ``tests/service/reconfiguration`` covers the steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from epochal.contracts.catalog import Directive, VersionOrder
from epochal.contracts.configuration import Autoscaling, Configuration
from epochal.engine.commits import CommitQueue
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.execution import ordered
from epochal.engine.job import Answers, EpochPlan
from epochal.engine.position import PendingBases, Position
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.retention import Retention
from epochal.errors import EpochAborted
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from epochal.testing.state_world import SMALL_CELLS
from epochal.wire.configuration import merged_configuration
from tests.kit.programs import EmptyEpochs, program_of
from tests.kit.waiting import eventually

BEFORE = Configuration(parallelism=2, max_uncommitted_epochs=3)
AFTER = Configuration(parallelism=8, max_uncommitted_epochs=1)


class Recording(EmptyEpochs):
    """Aborts its epochs if ``fails``. All runners of a test record their calls in ``calls``."""

    def __init__(self, name: str, calls: list[str], fails: bool = False) -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def activate(self, before: object = None) -> None:
        self.calls.append(f"{self.name} is activated")

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        self.calls.append(f"{self.name} runs")
        if self.fails:
            raise EpochAborted("The runner fails.")
        return super().run(plan, timeout_seconds)


@pytest.mark.parametrize("fails", [False, True])
def test_the_version_is_replaced_and_restored_if_its_first_epoch_fails(tmp_path: Path, fails: bool) -> None:
    calls: list[str] = []
    before = program_of(BEFORE, runner=Recording("before", calls), version=1, store=str(tmp_path / "store"))
    current = CurrentProgram(before)
    store, catalog = SnapshotStore(before.orders.store), MemoryCatalog(MemoryCatalogState(), 1)
    position, bases = Position(catalog.begin_attempt().branch, 1, None), PendingBases()
    queue = CommitQueue(catalog, current)
    coordinator = Coordinator(current, catalog, store, queue, position, bases, now=lambda: datetime.now(UTC))
    queue.retain = retention = Retention(store, current, Compaction(store, position, bases, current, sizes=SMALL_CELLS))

    def assembled(order: VersionOrder) -> Program:
        return replace(before, orders=ordered(before.orders, order), runner=Recording("after", calls, fails))

    def run_epoch() -> None:
        coordinator.run_epoch({}, ["command"])

    def commit_all() -> None:
        while queue.step():
            pass

    reconfigurations = Reconfigurations(coordinator, queue, retention, catalog, assembled, lambda _: None)
    run_epoch()
    order = VersionOrder(
        version=2, artifact="a" * 64, filename="", configuration=AFTER.model_dump(mode="json"), by="ann"
    )
    reconfigurations.take(Directive(id="d", kind="reconfigure", arguments=order.model_dump(mode="json")))
    eventually(lambda: reconfigurations.ready)
    reconfigurations.carry_out(commit_all, run_epoch)
    run_epoch()
    last = ["before is activated", "before runs"] if fails else ["after runs"]
    assert calls == ["before is activated", "before runs", "after is activated", "after runs", *last]
    assert (current.program is before) is fails
    assert position.head is not None
    assert store.read_manifest(position.head).parallelism == (BEFORE if fails else AFTER).parallelism
    assert queue.has_room is fails  # after two epochs with a limit of 1, or one epoch with a limit of 3


def test_an_application_keeps_its_state_backend_when_the_default_changes() -> None:
    assert Configuration().stored()["state_backend"] == "heap"
    before = Configuration(state_backend="lmdb").stored()
    assert merged_configuration(before, {"parallelism": 3}).state_backend == "lmdb"


def test_the_stored_form_has_every_setting_and_is_read_again() -> None:
    assert set(Configuration().stored()) == set(Configuration.model_fields)
    assert Configuration.model_validate(Configuration().stored()) == Configuration()
    used = Configuration(guarantee="at_least_once", autoscaling=Autoscaling(least=1, greatest=4))
    assert Configuration.model_validate(used.stored()) == used
