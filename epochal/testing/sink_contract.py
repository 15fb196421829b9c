"""Contract tests for sink backends. See :mod:`epochal.testing.contract`."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from epochal.contracts.backend import DecidedEpoch, SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import Fenced, RowRejected, SinkAhead
from epochal.snapshots import task_files

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
APPLICATION, BRANCH, OWNER = "application", "main", "out"

Row = dict[str, Any]


class SinkHarness(ABC):
    """One target, initially empty, and methods to inspect it."""

    @abstractmethod
    def make(self) -> SinkBackend:
        """Return a new instance of the backend, named ``out``, for the target, as a new process would create it."""

    @abstractmethod
    def visible(self) -> list[Row]:
        """Return the rows (``id`` bigint, ``name`` string) that a reader of the target currently sees, in any order."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """List invisible remains in or beside the target: staged files, logs, open transactions."""

    def end(self, backend: SinkBackend) -> None:  # noqa: B027  most harnesses have nothing to release
        """Release the connections of a backend created by :meth:`make`; its simulated process has ended."""


def rows(*ids: int) -> list[Row]:
    return [{"id": id, "name": None if id % 5 == 0 else f"row {id} é漢"} for id in ids]


def epoch(number: int, attempt: int = 1, parent: int | None = None) -> EpochScope:
    """Return the scope of an epoch. Its parent defaults to the previous number."""
    parent = number - 1 if parent is None else parent
    return EpochScope(APPLICATION, EpochKey(BRANCH, number), attempt, EpochKey(BRANCH, parent) if parent else None)


def start(backend: SinkBackend, scope: EpochScope, subtask: int = 0) -> SinkTransaction:
    return _copied(backend).start(TaskScope(scope, OWNER, subtask))


def pre_commit(backend: SinkBackend, scope: EpochScope, rows: Iterable[Row], subtask: int = 0) -> Handle:
    """Run one task attempt from start to handle in an executor's copy of the backend; the handle travels as JSON, with
    its files."""
    transaction = start(backend, scope, subtask)
    for row in rows:
        transaction.write(batch([row]))
    handle = transaction.pre_commit()
    return Handle.decode(handle.encode()).model_copy(update={"carried": handle.carried})


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _with_other_bytes(rows: list[Row]) -> pa.RecordBatch:
    """The rows, with a name in the middle that is not UTF-8, as Spark's casts of binary to string make it."""
    names: list[Any] = [row["name"] for row in rows]
    names[len(names) // 2] = b"\xff"
    found = pa.array(names, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(found), found.buffers(), found.null_count)
    return pa.RecordBatch.from_arrays([pa.array([row["id"] for row in rows], pa.int64()), text], schema=SCHEMA)


def _copied(backend: SinkBackend) -> SinkBackend:
    """Copy the backend as Spark does when it sends it to an executor."""
    copy: SinkBackend = pickle.loads(cloudpickle.dumps(backend))  # type: ignore[no-untyped-call]
    return copy


def same(left: list[Row], right: list[Row]) -> bool:
    """Compare two lists of rows as multisets."""
    return Counter((row["id"], row["name"]) for row in left) == Counter((row["id"], row["name"]) for row in right)


class DecidedEpochs:
    """Commits epochs as a driver does, which knows from its manifests which epochs had rows."""

    def __init__(self) -> None:
        self._with_rows: dict[str, set[int]] = defaultdict(set)

    def commit(self, backend: SinkBackend, scope: EpochScope, handles: Iterable[Handle]) -> None:
        with_rows = self._with_rows[scope.branch]
        previous = max((number for number in with_rows if number < scope.epoch), default=None)
        part = DecidedEpoch(scope, tuple(handles), previous)
        if part.rows:
            with_rows.add(scope.epoch)
        backend.commit_decided([part])


class SinkBackendContract:
    """Contract tests of a sink backend. Subclass it and override the fixture ``harness``."""

    @pytest.fixture
    def decided(self) -> DecidedEpochs:
        return DecidedEpochs()

    @pytest.fixture
    def harness(self) -> SinkHarness:
        raise NotImplementedError("override the fixture 'harness' with a SinkHarness for an empty target")

    @pytest.fixture(autouse=True)
    def files_of_their_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tasks write their logs to the store, as they do large ones: these tests have no driver that writes packs."""
        monkeypatch.setattr(task_files, "TASK_BYTES", 0)

    @pytest.fixture
    def backend(self, harness: SinkHarness) -> SinkBackend:
        backend = harness.make()
        backend.check(SCHEMA)
        backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
        return backend

    def test_a_target_is_the_same_string_for_every_instance(self, harness: SinkHarness) -> None:
        assert harness.make().target == harness.make().target
        assert harness.make().target.startswith(harness.make().kind)

    def test_nothing_is_visible_before_commit(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        transaction = start(backend, epoch(1))
        transaction.write(batch(rows(1, 2)))
        assert harness.visible() == []
        handle = transaction.pre_commit()
        assert harness.visible() == []
        decided.commit(backend, epoch(1), [handle])
        assert same(harness.visible(), rows(1, 2))

    def test_a_handle_counts_what_it_stands_for(self, backend: SinkBackend) -> None:
        handle = pre_commit(backend, epoch(1), rows(1, 2, 3), subtask=4)
        assert (handle.owner, handle.subtask, handle.rows) == (OWNER, 4, 3)
        assert handle.bytes > 0
        assert len(handle.encode()) < 8192

    def test_all_subtasks_become_visible(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        handles = [pre_commit(backend, epoch(1), rows(subtask, subtask + 100), subtask) for subtask in range(4)]
        decided.commit(backend, epoch(1), handles)
        assert same(harness.visible(), rows(*range(4), *range(100, 104)))

    def test_batches_of_many_sizes_are_all_written(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        transaction = start(backend, epoch(1))
        for first, size in ((0, 1), (1, 0), (1, 500), (501, 3000)):
            transaction.write(batch(rows(*range(first, first + size))))
        decided.commit(backend, epoch(1), [transaction.pre_commit()])
        assert same(harness.visible(), rows(*range(3501)))

    def test_the_rest_of_a_batch_with_a_rejected_row_can_be_written(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        """A sink that raises ``RowRejected`` has taken no row of the batch. Text that is not UTF-8 is rejected by most;
        a sink that takes it writes all rows."""
        transaction = start(backend, epoch(1))
        transaction.write(batch(rows(1)))
        try:
            transaction.write(_with_other_bytes(rows(2, 3, 4)))
        except RowRejected:
            transaction.write(batch(rows(2)))
            transaction.write(batch(rows(4)))
            handle = transaction.pre_commit()
            decided.commit(backend, epoch(1), [handle])
            assert same(harness.visible(), rows(1, 2, 4))
        else:
            assert transaction.pre_commit().rows == 4

    def test_an_empty_subtask_has_a_handle(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        empty, full = pre_commit(backend, epoch(1), [], 0), pre_commit(backend, epoch(1), rows(1), 1)
        assert empty.rows == 0
        decided.commit(backend, epoch(1), [empty, full])
        assert same(harness.visible(), rows(1))

    def test_an_epoch_without_rows_commits(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        decided.commit(backend, epoch(1), [pre_commit(backend, epoch(1), [])])
        decided.commit(backend, epoch(2), [])
        decided.commit(backend, epoch(3), [pre_commit(backend, epoch(3), rows(3))])
        assert same(harness.visible(), rows(3))

    def test_commit_is_idempotent_in_any_process(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        handles = [pre_commit(backend, epoch(1), rows(1), 0), pre_commit(backend, epoch(1), rows(2), 1)]
        decided.commit(backend, epoch(1), handles)
        decided.commit(backend, epoch(1), handles)
        decided.commit(harness.make(), epoch(1), list(reversed(handles)))
        assert same(harness.visible(), rows(1, 2))

    def test_a_later_attempt_commits_what_an_earlier_prepared(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        handle = pre_commit(backend, epoch(1), rows(1, 2))
        successor = harness.make()
        successor.recover(epoch(1, attempt=2))
        decided.commit(successor, epoch(1, attempt=2), [handle])
        successor.recover(epoch(1, attempt=3))
        decided.commit(successor, epoch(1, attempt=3), [handle])
        assert same(harness.visible(), rows(1, 2))

    def test_epochs_add_up_and_an_old_one_committed_again_adds_nothing(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        first = pre_commit(backend, epoch(1), rows(1))
        second = pre_commit(backend, epoch(2), rows(1, 2))
        decided.commit(backend, epoch(1), [first])
        decided.commit(backend, epoch(2), [second])
        assert same(harness.visible(), rows(1, 1, 2))
        decided.commit(backend, epoch(2), [second])
        assert same(harness.visible(), rows(1, 1, 2))

    def test_what_is_shown_is_said_or_not_known_and_asking_changes_nothing(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        """The control plane makes this call after its catalog has been restored from a backup."""
        asked = harness.make()
        assert asked.shown(epoch(0)) in (0, None)
        for number in (1, 2):
            decided.commit(backend, epoch(number), [pre_commit(backend, epoch(number), rows(number))])
            assert asked.shown(epoch(1)) in (number, None)
        pre_commit(backend, epoch(3), rows(3))
        assert asked.shown(epoch(1)) in (2, None)
        decided.commit(backend, epoch(3), [pre_commit(backend, epoch(3), rows(3))])  # the call fenced no attempt
        harness.end(asked)

    def test_a_sink_that_is_ahead_refuses(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        """The catalog was restored, and a later attempt starts at an epoch that the sink has already passed."""
        for number in (1, 2):
            decided.commit(backend, epoch(number), [pre_commit(backend, epoch(number), rows(number))])
        restored = harness.make()
        if restored.shown(epoch(1)) is None:
            return
        restored.check(SCHEMA)
        with pytest.raises(SinkAhead, match="epochal rollback application --epoch 1"):
            restored.recover(epoch(1, attempt=1_000_002))
        assert same(harness.visible(), rows(1, 2))
        harness.end(restored)

    def test_numbers_may_have_gaps(self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend) -> None:
        decided.commit(backend, epoch(2, parent=0), [pre_commit(backend, epoch(2, parent=0), rows(2))])
        backend.sweep(epoch(3), [])
        decided.commit(backend, epoch(9, parent=2), [pre_commit(backend, epoch(9, parent=2), rows(9))])
        assert same(harness.visible(), rows(2, 9))

    def test_attempts_of_one_subtask_may_run_concurrently(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        slow, quick = start(backend, epoch(1)), start(backend, epoch(1))
        slow.write(batch(rows(1)))
        quick.write(batch(rows(1)))
        winner, loser = quick.pre_commit(), slow.pre_commit()
        assert backend.sweep(epoch(1), [winner]) > 0
        decided.commit(backend, epoch(1), [winner])
        backend.abort(epoch(1), [loser])
        assert same(harness.visible(), rows(1))
        assert harness.leftovers() == []

    def test_abort_is_idempotent_and_leaves_nothing(self, harness: SinkHarness, backend: SinkBackend) -> None:
        handles = [pre_commit(backend, epoch(1), rows(1), 0), pre_commit(backend, epoch(1), rows(2), 1)]
        backend.abort(epoch(1), handles)
        backend.abort(epoch(1), handles)
        harness.make().abort(epoch(1), handles)
        assert harness.visible() == []
        assert harness.leftovers() == []

    def test_the_slice_of_an_aborted_epoch_is_committed_by_the_next(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        backend.abort(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        backend.sweep(epoch(1), [])
        decided.commit(backend, epoch(2, parent=0), [pre_commit(backend, epoch(2, parent=0), rows(1))])
        assert same(harness.visible(), rows(1))

    def test_discard_leaves_nothing_and_never_raises(self, harness: SinkHarness, backend: SinkBackend) -> None:
        untouched, written = start(backend, epoch(1), 0), start(backend, epoch(1), 1)
        written.write(batch(rows(1, 2)))
        for transaction in (untouched, written, written):
            transaction.discard()
        assert harness.visible() == []
        assert harness.leftovers() == []

    def test_sweep_removes_what_a_killed_task_left(self, harness: SinkHarness, backend: SinkBackend) -> None:
        killed = start(backend, epoch(1))
        killed.write(batch(rows(*range(2000))))
        unreported = pre_commit(backend, epoch(1), rows(7), 1)
        assert unreported.rows == 1
        backend.sweep(epoch(1), [])
        assert backend.sweep(epoch(1), []) == 0
        assert harness.visible() == []
        assert harness.leftovers() == []

    def test_sweep_spares_what_is_kept_and_other_epochs(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        kept, lost = pre_commit(backend, epoch(1), rows(1), 0), pre_commit(backend, epoch(1), rows(99), 0)
        later = pre_commit(backend, epoch(2), rows(2))
        assert lost.payload != kept.payload
        assert backend.sweep(epoch(1), [kept]) > 0
        decided.commit(backend, epoch(1), [kept])
        backend.sweep(epoch(1), [kept])
        decided.commit(backend, epoch(2), [later])
        backend.sweep(epoch(2), [later])
        assert same(harness.visible(), rows(1, 2))
        assert harness.leftovers() == []

    def test_recover_is_idempotent_and_keeps_what_is_there(
        self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend
    ) -> None:
        decided.commit(backend, epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        prepared = pre_commit(backend, epoch(2), rows(2))
        for attempt in (2, 2, 3):
            harness.make().recover(epoch(2, attempt=attempt))
        assert same(harness.visible(), rows(1))
        successor = harness.make()
        successor.recover(epoch(2, attempt=4))
        decided.commit(successor, epoch(2, attempt=4), [prepared])
        assert same(harness.visible(), rows(1, 2))

    def test_a_zombie_changes_nothing(self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend) -> None:
        prepared = pre_commit(backend, epoch(1), rows(1))
        zombie, unfinished = backend, start(backend, epoch(2))
        unfinished.write(batch(rows(66)))
        successor = harness.make()
        successor.check(SCHEMA)
        successor.recover(epoch(1, attempt=2))
        decided.commit(successor, epoch(1, attempt=2), [prepared])
        decided.commit(successor, epoch(3, 2, parent=1), [pre_commit(successor, epoch(3, 2, parent=1), rows(3))])
        try:
            decided.commit(zombie, epoch(1), [prepared])
            unfinished.pre_commit()
        except Fenced:
            pass  # preferred, where the target can detect a zombie
        assert same(harness.visible(), rows(1, 3))

    def test_branches_do_not_meet(self, decided: DecidedEpochs, harness: SinkHarness, backend: SinkBackend) -> None:
        decided.commit(backend, epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        other = EpochScope(APPLICATION, EpochKey("other", 2), 1, EpochKey(BRANCH, 1))
        mine = pre_commit(backend, epoch(2), rows(2))
        assert backend.sweep(other, []) == 0
        decided.commit(backend, epoch(2), [mine])
        assert same(harness.visible(), rows(1, 2))
