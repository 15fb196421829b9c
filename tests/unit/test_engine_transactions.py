"""An administrator's orders on the transactions of a files sink that cannot commit: its staged file is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from epochal.backends.files import FilesBackend
from epochal.contracts.catalog import (
    Change,
    Directive,
    DriverStatus,
    Failure,
    ManifestReference,
    OptimizeResult,
    VersionOrder,
)
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.engine.commits import BackgroundCommits, CommitQueue
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.job import Participants
from epochal.engine.loop import EpochLoop, TransactionOrders
from epochal.engine.optimization import Optimizations
from epochal.engine.position import PendingBases, Position
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.retention import Retention
from epochal.errors import RowRefused
from epochal.faults import FaultPoint, injected
from epochal.snapshots.manifest import SinkHandles
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.manifests import plain_manifest
from tests.kit.programs import current_program
from tests.kit.waiting import eventually

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
RUNNING = DriverStatus(phase="running")


class RecordingCatalog(MemoryCatalog):
    """A catalog with directives of the test, which records their completion."""

    pending: list[Directive]
    answers: dict[str, Failure | None]
    reported: DriverStatus

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        self.reported = status
        return tuple(item for item in self.pending if item.id not in self.answers)

    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        self.answers[directive] = failure


class Engine:
    """A commit queue over two files sinks; in one of them the first epoch's file is lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sinks = {name: FilesBackend(str(folder / name)) for name in ("good", "bad")}
        self.catalog = RecordingCatalog(MemoryCatalogState(), attempt=1)
        self.catalog.pending, self.catalog.answers = [], {}
        self.point = self.catalog.begin_attempt()
        self.queue = CommitQueue(self.catalog, current_program(participants=Participants(sinks=self.sinks)))
        self.changes: list[Change] = []
        self.orders = TransactionOrders(self.catalog, self.queue, self.changes)
        for sink in self.sinks.values():
            sink.recover(self.scope(0))
        self.prepare(1)
        (self.lost,) = (folder / "bad" / "_staging").rglob("*.parquet")
        self.lost.rename(folder / "aside.parquet")
        self.prepare(2)

    def scope(self, epoch: int) -> EpochScope:
        parent = EpochKey(self.point.branch, epoch - 1) if epoch > 1 else None
        return EpochScope("application", EpochKey(self.point.branch, epoch), self.point.attempt, parent)

    def prepare(self, epoch: int) -> None:
        scope, handles = self.scope(epoch), {}
        for name, sink in self.sinks.items():
            transaction = sink.start(TaskScope(scope, name, 0))
            transaction.write(ROWS)
            handles[name] = transaction.pre_commit()
        manifest = plain_manifest(
            epoch,
            branch=scope.branch,
            attempt=scope.attempt,
            sinks={
                name: SinkHandles(kind="files", target=self.sinks[name].target, handles=(handle,))
                for name, handle in handles.items()
            },
        )
        reference = ManifestReference(branch=scope.branch, epoch=epoch, path=f"{epoch}.json", sha256="0" * 64)
        self.catalog.open_epoch(epoch, scope.parent)
        self.catalog.prepare_epoch(epoch, scope.parent, reference, manifest.counts)
        self.queue.submit(scope, manifest)

    def order(self, id: str, action: str, epoch: int = 1, sink: str = "bad") -> None:
        arguments = {"sink": sink, "epoch": epoch, "action": action, "by": "ann", "message": "lost"}
        self.catalog.pending.append(Directive(id=id, kind="transaction", arguments=arguments))

    def committed(self, sink: str) -> list[str]:
        return sorted(path.name for path in (self.folder / sink).glob("epoch=*"))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = Engine(tmp_path)
    engine.queue.step()
    return engine


def test_only_the_blocked_sink_waits_and_reports_its_error(engine: Engine) -> None:
    engine.orders.heartbeat(RUNNING)
    assert engine.committed("good") == ["epoch=0000000001", "epoch=0000000002"]
    assert engine.committed("bad") == []
    assert [(item.sink, item.epoch, item.rows) for item in engine.catalog.reported.transactions] == [
        ("bad", 1, 3),
        ("bad", 2, 3),
    ]
    assert "has lost" in (engine.catalog.reported.transactions[0].error or "")


def test_a_retry_runs_without_delay(engine: Engine) -> None:
    (engine.folder / "aside.parquet").rename(engine.lost)
    engine.order("a", "retry")
    assert engine.orders.heartbeat(RUNNING) == []
    assert engine.catalog.answers == {"a": None}
    assert engine.queue.hurried
    engine.queue.step()
    assert engine.queue.empty
    assert engine.committed("bad") == engine.committed("good")
    assert engine.changes == []


@pytest.mark.parametrize("action", ["abort", "commit"])
def test_abort_and_commit_orders_complete_when_carried_out(engine: Engine, action: str) -> None:
    engine.order("a", action)
    engine.orders.heartbeat(RUNNING)
    assert engine.catalog.answers == {}
    engine.queue.step()
    engine.orders.heartbeat(RUNNING)
    assert engine.catalog.answers == {"a": None}
    assert engine.queue.empty
    assert engine.committed("bad") == ["epoch=0000000002"]
    assert list((engine.folder / "bad" / "_staging").rglob("*.parquet")) == []
    (change,) = engine.changes
    assert (change.kind, change.detail["action"], change.detail["by"]) == ("transaction", action, "ann")


def test_a_crash_during_an_abort_order_is_resumed(engine: Engine) -> None:
    engine.order("a", "abort")
    engine.orders.heartbeat(RUNNING)

    def crash(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "E5.given-up":
            raise KeyboardInterrupt

    with injected(crash), pytest.raises(KeyboardInterrupt):
        engine.queue.step()
    assert engine.catalog.answers == {}
    engine.queue.step()
    engine.orders.heartbeat(RUNNING)
    assert engine.catalog.answers == {"a": None}
    assert engine.committed("bad") == ["epoch=0000000002"]


def test_orders_on_closed_transactions_are_refused(engine: Engine) -> None:
    engine.order("a", "abort", sink="good")
    engine.catalog.pending.append(Directive(id="b", kind="stop"))
    assert [item.id for item in engine.orders.heartbeat(RUNNING)] == ["b"]
    failure = engine.catalog.answers["a"]
    assert failure is not None and "no longer open" in failure.message


def test_an_order_during_a_commit_has_no_effect(engine: Engine) -> None:
    """The sink commits between the arrival of the order and the queue's next step."""
    (engine.folder / "aside.parquet").rename(engine.lost)

    def order_now(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "E5.files.renamed" and epoch == 1:
            engine.orders.heartbeat(RUNNING)

    engine.order("a", "abort")
    with injected(order_now):
        engine.queue.step()
    engine.orders.heartbeat(RUNNING)
    failure = engine.catalog.answers["a"]
    assert failure is not None and "the order had no effect" in failure.message
    assert engine.committed("bad") == ["epoch=0000000001", "epoch=0000000002"]
    assert engine.changes == []


def test_savepoints_and_upgrades_are_refused_while_a_sink_is_stopped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs continue meanwhile; waiting for the refused row would stop them. Savepoints succeed once it is dropped."""
    commit, program = engine.sinks["bad"].commit, engine.queue.current.program

    def refusing(epoch: EpochScope, handles: Sequence[Handle]) -> None:
        if handles:
            raise RowRefused("The database refuses row id=5.")
        commit(epoch, handles)

    monkeypatch.setattr(engine.sinks["bad"], "commit", refusing)
    engine.queue.step()
    store, bases = SnapshotStore(str(engine.folder / "store")), PendingBases()
    position, queue = Position(engine.point.branch, 3, None), engine.queue
    coordinator = Coordinator(
        queue.current, engine.catalog, store, queue, position, bases, now=lambda: datetime.now(UTC)
    )
    retention = Retention(store, queue.current, Compaction(store, position, bases, queue.current))
    reconfigurations = Reconfigurations(
        coordinator, queue, retention, engine.catalog, lambda order: program, lambda program: None
    )
    commits = BackgroundCommits(queue)
    loop = EpochLoop(
        coordinator,
        commits,
        engine.catalog,
        engine.orders,
        reconfigurations,
        Optimizations(engine.catalog, engine.queue.current),
    )
    order = VersionOrder(version=2, artifact="a" * 64, filename="", configuration={}, by="ann")
    reconfigurations.take(Directive(id="version", kind="reconfigure", arguments=order.model_dump(mode="json")))
    eventually(lambda: reconfigurations.ready)
    commits.start()
    savepoints = [Directive(id=f"savepoint {number}", kind="savepoint") for number in range(2)]
    steps: list[Callable[[], object]] = [
        lambda: loop._carry_out(savepoints[:1]),
        lambda: reconfigurations.carry_out(loop._commit_all, lambda: pytest.fail("the version must not run")),
    ]
    for id, step in zip(("savepoint 0", "version"), steps, strict=True):
        threading.Thread(target=step, daemon=True).start()
        eventually(lambda id=id: id in engine.catalog.answers, 20)  # type: ignore[misc]
        failure = engine.catalog.answers[id]
        assert failure is not None and failure.type == "row-refused"
        assert "Sink 'bad' is stopped" in failure.message
        assert "`epochal transaction abort application bad 1`" in failure.message
    assert queue.current.program is program and position.head is None
    for epoch in (1, 2):
        queue.give_up("bad", epoch)
    eventually(lambda: queue.empty)
    assert not loop._carry_out(savepoints[1:])
    assert engine.catalog.answers["savepoint 1"] is None and queue.empty
    commits.stop()
