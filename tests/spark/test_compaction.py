"""Compaction: when it is due, what it writes and keeps. Epochs do not wait for it and survive its failure."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal.background.worker import BackgroundWorker
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Configuration
from epochal.contracts.identity import EpochKey
from epochal.engine.compaction import FIRST_PAUSE_SECONDS, Compaction
from epochal.engine.compaction_job import SparkMerging
from epochal.engine.compaction_process import MergingProcess
from epochal.engine.position import PendingBases, Position
from epochal.engine.session import limited
from epochal.errors import EpochTimeout, SnapshotError, StorageFull
from epochal.faults import FaultPoint, injected
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.snapshots import compaction as compaction_module
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.compaction import MergeJob, compact, jobs_of
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import EMPTY
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference, Manifest
from epochal.snapshots.merge_policy import CompactionPolicy
from epochal.snapshots.merging import merged
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateTable
from epochal.testing.state_world import COUNTS, GROUPS, SMALL_CELLS, Change, changes_of, counted, uncounted
from tests.kit.manifests import plain_manifest
from tests.kit.programs import current_program
from tests.kit.waiting import eventually

AFTER_TWO = Configuration(compact_after_epochs=2)


class Line:
    """Epochs of one branch with real manifests, and the position of their driver."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self.position = Position("main", 1, None, {COUNTS.id: EMPTY})
        self.bases = PendingBases()

    @property
    def chain(self) -> Chain:
        return self.position.chains[COUNTS.id]

    def epoch(self, changes: list[Change]) -> Manifest:
        key = EpochKey("main", self.position.next_epoch)
        rows = sort_changes(COUNTS, changes_of(COUNTS, changes))
        bases = self.bases.take()
        manifest = plain_manifest(
            key.epoch,
            application="test",
            parent=self.position.head,
            parallelism=4,
            max_parallelism=GROUPS,
            tables=(COUNTS,),
            deltas=(write_delta(self.store, rows, key, 0, 1),) if changes else (),
            bases=bases,
            source_checkpoints={"in": {}} if bases or self.bases.checkpoint_requested else {},
        )
        reference: ManifestReference = self.store.write_manifest(manifest)
        self.position.advance(manifest, reference)
        self.position.next_epoch += 1
        self.bases.published(manifest)
        return manifest

    def rows(self) -> list[Change]:
        return merged(self.store, COUNTS, self.chain, range(GROUPS)).drop_columns(["_kg"]).to_pylist()


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(SnapshotStore(str(tmp_path / "store")))


def compacted(line: Line) -> tuple[BaseFile, ...]:
    return compact(line.store, COUNTS, line.chain, GROUPS, 4, SMALL_CELLS)


def jobs(line: Line) -> tuple[MergeJob, ...]:
    return jobs_of(COUNTS, line.chain, 4, GROUPS, SMALL_CELLS).jobs


def chain_of(delta_bytes: list[int]) -> dict[str, Chain]:
    def file(number: int, size: int) -> FileReference:
        return FileReference(path=str(number), sha256="0", bytes=size, rows=size)

    links = tuple(
        Link(EpochKey("main", n + 1), (DeltaFile(table="t", subtask=0, parallelism=1, file=file(n + 1, size)),))
        for n, size in enumerate(delta_bytes)
    )
    return {"t": Chain(None, (), links)}


@pytest.mark.parametrize(
    ("deltas", "due"),
    [
        ([50, 50], True),  # by size
        ([40, 40], False),
        ([600], False),  # a single delta
        ([1] * 9, False),
        ([1] * 10, True),  # by length
    ],
)
def test_compaction_is_due_by_size_or_length(deltas: list[int], due: bool) -> None:
    assert CompactionPolicy(epochs=10, bytes=100).is_due(chain_of(deltas)) is due


def test_compaction_without_state_is_never_due() -> None:
    assert not CompactionPolicy(epochs=2).is_due({})
    assert not CompactionPolicy(epochs=2).is_due({"t": EMPTY})


def test_only_changed_cells_have_new_runs(line: Line) -> None:
    line.epoch(counted(*range(200)))
    first = compacted(line)
    assert sorted(group for base in first for group in base.groups) == list(range(GROUPS))
    line.bases.offer(first)
    line.epoch([])
    line.epoch(counted(1, count=9))
    second = compacted(line)
    assert {base.at.epoch for base in second} == {3}
    (new,) = {
        base.file.path: base for base in second if base.file.path not in {each.file.path for each in first}
    }.values()
    assert (new.age, new.file.rows, new.deletes) == (1, 1, False)
    assert {base.file.path for base in first} < {base.file.path for base in second}
    expected = line.rows()
    line.bases.offer(second)
    line.epoch([])
    assert line.chain.base_at == EpochKey("main", 3)
    assert line.rows() == expected


def test_small_table_has_one_run(line: Line) -> None:
    for number in range(1, 5):
        line.epoch(counted(*range(50 * number), count=number))
        (base,) = compact(line.store, COUNTS, line.chain, GROUPS, 4)
        assert (base.groups, base.age, base.file.rows) == (range(GROUPS), 0, 50 * number)
        line.bases.offer((base,))
    line.epoch([])
    (again,) = compact(line.store, COUNTS, line.chain, GROUPS, 4)
    assert again.file == base.file and again.at.epoch == 5  # nothing has changed


def test_every_run_is_rewritten_after_a_change_of_columns(line: Line) -> None:
    line.epoch(counted(*range(200)))
    first = compacted(line)
    evolved = StateTable(**{**COUNTS.model_dump(), "value": (*COUNTS.value, Column(name="more", type="int"))})
    chain = Chain(EpochKey("main", 1), first, ())
    again = compact(line.store, evolved, chain, GROUPS, 4, SMALL_CELLS)
    assert not {base.file.path for base in first} & {base.file.path for base in again}
    rows = merged(line.store, evolved, Chain(EpochKey("main", 1), again, ()), range(GROUPS))
    assert rows.equals(merged(line.store, evolved, chain, range(GROUPS)))


@pytest.mark.parametrize("folded_rows", [0, 1 << 20])
def test_bases_have_the_rows_of_the_chain(line: Line, monkeypatch: pytest.MonkeyPatch, folded_rows: int) -> None:
    monkeypatch.setattr(compaction_module, "FOLDED_ROWS", folded_rows)
    for number in range(1, 7):
        line.epoch(counted(*range(0, 100, number), count=number) + uncounted(101, 200 + number))
        line.epoch(uncounted(*range(0, 20, number)))
        expected = line.rows()
        line.bases.offer(compacted(line))
        line.epoch([])
        assert line.rows() == expected


def test_bases_are_written_in_the_background_of_epochs(line: Line) -> None:
    background = BackgroundWorker("compaction")
    compaction = Compaction(line.store, line.position, line.bases, current_program(AFTER_TWO), background)
    begun, proceed = threading.Event(), threading.Event()

    def block(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "E7.base-written":
            begun.set()
            proceed.wait(20)

    line.epoch(counted(*range(50)))
    line.epoch(counted(*range(10), count=2))
    with injected(block):
        compaction.consider(2)
        assert begun.wait(20)
        line.epoch(counted(60))
        compaction.consider(3)  # returns immediately: a compaction is running
        proceed.set()
        assert background.wait(20)
    expected = line.rows()
    assert {base.at.epoch for base in line.bases.take()} == {2}
    line.epoch([])
    assert line.bases.take() == ()
    assert (line.chain.base_at, len(line.chain.links)) == (EpochKey("main", 2), 2)
    assert line.rows() == expected
    compaction.finish()


def test_interrupted_compaction_leaves_no_files(line: Line) -> None:
    background = BackgroundWorker("compaction")
    compaction = Compaction(line.store, line.position, line.bases, current_program(AFTER_TWO), background)
    stopping = threading.Thread(target=compaction.finish)

    def end_now(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "E7.base-written" and not stopping.is_alive():
            stopping.start()
            while not background.stopping:
                pass

    line.epoch(counted(*range(50)))
    line.epoch(counted(*range(50)))
    before = line.store.list("")
    with injected(end_now):
        compaction.consider(2)
        assert background.wait(20)
    stopping.join(20)
    assert (line.store.list(""), line.bases.take()) == (before, ())


def test_finish_deletes_only_bases_that_no_manifest_names(line: Line) -> None:
    compaction = Compaction(line.store, line.position, line.bases, current_program(AFTER_TWO))
    line.epoch(counted(*range(50)))
    line.epoch(counted(1))
    compaction.consider(2)
    line.epoch(counted(1))
    line.epoch(counted(1))
    named = set(line.store.list("main/bases"))
    compaction.consider(4)
    assert len(line.bases.take()) == 1 and len(line.store.list("main/bases")) == 2
    compaction.finish()
    assert set(line.store.list("main/bases")) == named


def test_compaction_is_retried_later_after_a_full_store(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    current = current_program(AFTER_TWO)
    compaction = Compaction(line.store, line.position, line.bases, current, clock=lambda: moment, sizes=SMALL_CELLS)
    line.epoch(counted(*range(50)))
    line.epoch(counted(*range(50)))
    before, real, writes = line.store.list(""), SnapshotStore.write, 0

    def full_after_two(store: SnapshotStore, path: str, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > 2:
            raise StorageFull(f"There is no space left for {path}.")
        real(store, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotStore, "write", full_after_two)
        with pytest.raises(StorageFull):
            compaction.consider(2)
        compaction.consider(2)  # not yet
        assert writes == 3
    assert line.store.list("") == before
    moment = FIRST_PAUSE_SECONDS
    compaction.consider(2)
    assert len(line.bases.take()) == 4
    assert line.epoch(counted(3)).bases


def test_application_without_state_requests_checkpoints(line: Line) -> None:
    line.position.chains.clear()
    current = current_program(Configuration(compact_after_epochs=3))
    compaction = Compaction(line.store, line.position, line.bases, current)
    requested = []
    for number in range(1, 8):
        compaction.consider(number)
        requested.append(bool(line.epoch([]).source_checkpoints))
    assert requested == [True, False, False, True, False, False, True]


@pytest.mark.timeout(300)
def test_spark_writes_the_same_bases_as_the_driver(line: Line, spark: SparkSession) -> None:
    line.epoch(counted(*range(200)))
    line.epoch(uncounted(*range(50)))
    in_driver = compacted(line)
    remote = list(SparkMerging(spark, line.store, 2)(jobs(line)))
    assert [base.file.sha256 for base in remote] == [base.file.sha256 for base in in_driver]
    assert [base.first_group for base in remote] == [0, 1, 2, 3]


def test_compaction_process_writes_the_same_bases_as_the_driver(line: Line) -> None:
    line.epoch(counted(*range(200)))
    line.epoch(uncounted(*range(50)))
    in_driver = compacted(line)
    remote = list(MergingProcess(line.store)(jobs(line)))
    assert [base.file.sha256 for base in remote] == [base.file.sha256 for base in in_driver]


def test_compaction_process_reports_missing_files(line: Line) -> None:
    line.epoch(counted(*range(200)))
    [link] = line.chain.links
    line.store.delete(link.deltas[0].file.path)
    with pytest.raises(SnapshotError, match=r"^The compaction failed: .*is missing"):
        list(MergingProcess(line.store)(jobs(line)))


def test_compaction_process_ends_with_a_killed_driver(line: Line, tmp_path: Path) -> None:
    line.epoch(counted(*range(200)))
    begun = tmp_path / "begun"
    held = HeldStore(line.store.url, str(begun), str(tmp_path / "proceed"))
    driver = subprocess.run(
        [sys.executable, "-c", KILLED_DRIVER.format(path=[str(Path(__file__).parents[2])])],
        input=pickle.dumps((held, jobs(line), begun)),
        timeout=300,
        check=False,
    )
    assert driver.returncode == -signal.SIGKILL
    compacting = int(begun.read_text())
    eventually(lambda: LocalProcess.find(compacting) is None)


KILLED_DRIVER = """
import sys; sys.path[:0] = {path!r}
import os, pickle, signal, threading
from epochal.engine.compaction_process import MergingProcess
from tests.kit.waiting import eventually
store, jobs, begun = pickle.load(sys.stdin.buffer)
threading.Thread(target=lambda: list(MergingProcess(store)(jobs)), daemon=True).start()
eventually(lambda: begun.exists() and begun.read_text(), 300)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_larger_state_is_compacted_in_a_separate_process(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.engine.compaction.BESIDE_BYTES", 1)
    compaction = Compaction(
        line.store, line.position, line.bases, current_program(AFTER_TWO), beside=MergingProcess(line.store)
    )
    line.epoch(counted(*range(50)))
    line.epoch(counted(*range(50)))
    compaction.consider(2)
    assert len(line.bases.take()) == 1


def test_large_state_is_compacted_by_a_spark_job(line: Line) -> None:
    requested: list[int] = []

    def on_spark(jobs: object) -> Iterator[BaseFile]:
        requested.append(len(list(jobs)))  # type: ignore[call-overload]
        yield from compacted(line)

    current = current_program(Configuration(compact_after_epochs=2, compact_on_spark_bytes=1))
    compaction = Compaction(line.store, line.position, line.bases, current, on_spark=lambda _: on_spark)
    line.epoch(counted(*range(50)))
    line.epoch(counted(*range(50)))
    compaction.consider(2)
    assert requested == [1]
    assert len(line.bases.take()) == 4


def test_cancelled_epoch_job_does_not_cancel_the_compaction(line: Line, spark: SparkSession, tmp_path: Path) -> None:
    line.epoch(counted(*range(200)))
    begun, proceed = tmp_path / "begun", tmp_path / "proceed"
    held = HeldStore(line.store.url, str(begun), str(proceed))
    failures: list[Exception] = []
    written: list[BaseFile] = []

    def write() -> None:
        try:
            written.extend(SparkMerging(spark, held, 1)(jobs(line)))
        except Exception as error:  # noqa: BLE001 the test reports every exception
            failures.append(error)

    compacting = threading.Thread(target=write)
    compacting.start()
    try:
        eventually(begun.exists)
        with pytest.raises(EpochTimeout, match=r"0\.5 s"), limited(spark, EpochKey("main", 2), 0.5):
            spark.range(1).mapInArrow(without_end, "id bigint").collect()
    finally:
        proceed.touch()
        compacting.join(60)
    assert (failures, [base.first_group for base in written]) == ([], [0, 1, 2, 3])


class HeldStore(SnapshotStore):
    """Its first write reports that it has begun, and waits for the file ``proceed``."""

    def __init__(self, url: str, begun: str, proceed: str) -> None:
        super().__init__(url)
        self._begun, self._proceed = Path(begun), Path(proceed)

    def __reduce__(self) -> tuple[type[HeldStore], tuple[str, str, str]]:
        return HeldStore, (self.url, str(self._begun), str(self._proceed))

    def write(self, path: str, data: bytes) -> None:
        self._begun.write_text(str(os.getpid()))
        eventually(self._proceed.exists)
        super().write(path, data)


def without_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(120)
        yield batch
