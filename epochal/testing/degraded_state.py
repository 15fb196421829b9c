"""Contract suite of state backends under faults; :mod:`epochal.testing.degraded` does the same for sinks.

    class TestMyStateDegraded(StateBackendContract):
        test_a_full_disk_is_said_so_and_leaves_nothing = None  # it counts the steps of a single call

        @pytest.fixture
        def harness(self, tmp_path):
            return DegradedStateHarness(MyHarness(tmp_path), Losses(FileAnswers()))

Each task loses its answers, one per attempt, and then runs again. Every other call does the same and is then made
twice. The worker is replaced between two calls unless a task is open in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.state import StateBackend, StateTaskScope, StateTransaction, StateView
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.testing.degraded import Losses
from epochal.testing.state_world import StateHarness

_instances: weakref.WeakValueDictionary[int, DegradedState] = weakref.WeakValueDictionary()


def _found(number: int) -> DegradedState:
    return _instances[number]


class DegradedStateHarness(StateHarness):
    """Wraps ``harness`` and loses answers according to ``losses``."""

    def __init__(self, harness: StateHarness, losses: Losses) -> None:
        self.harness = harness
        self.losses = losses
        self.handed_out: list[tuple[EpochScope, Handle]] = []
        """Handles that the suite holds; sweeps must keep them."""
        self.held: weakref.WeakSet[_DegradedTransaction] = weakref.WeakSet()
        """Open transactions of the suite; their worker is not replaced."""
        self._backends: list[DegradedState] = []

    @property
    def store(self) -> SnapshotStore:
        return self.harness.store

    def make(self) -> StateBackend:
        self._backends.append(DegradedState(self))
        return self._backends[-1]

    def new_worker(self) -> None:
        self.harness.new_worker()

    def new_machine(self) -> None:
        self.harness.new_machine()


class DegradedState(StateBackend):
    """The state backend that the suite receives."""

    def __init__(self, degraded: DegradedStateHarness) -> None:
        self._degraded = degraded
        _instances[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (id(self),)

    @property
    def kind(self) -> str:
        return self._degraded.harness.make().kind

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return self._degraded.harness.make().deltas(handle)

    def start(self, task: TaskScope) -> StateTransaction:
        def start_and_fail() -> None:
            self._degraded.harness.make().start(task).discard()

        self._replace_worker()
        self._degraded.losses.each("start", start_and_fail)
        self._replace_worker()
        return _DegradedTransaction(self, self._degraded, task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._again("commit", lambda backend: backend.commit(epoch, handles))

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._again("abort", lambda backend: backend.abort(epoch, handles))

    def recover(self, epoch: EpochScope) -> None:
        self._again("recover", lambda backend: backend.recover(epoch))

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        # After a lost answer only the store shows how much the call removed.
        before = len(self._degraded.store.list(""))
        self._again("sweep", lambda backend: backend.sweep(epoch, keep))
        return before - len(self._degraded.store.list(""))

    def attempt(self, task: StateTaskScope, staged: Sequence[tuple[str, pa.Table]]) -> None:
        """Run the task's preliminary attempts: each fails or is aborted."""

        def attempt() -> None:
            backend = self._degraded.harness.make()
            transaction = backend.start(task)
            try:
                for table, changes in staged:
                    transaction.stage(table, changes)
                handle = transaction.pre_commit()
            except BaseException:
                transaction.discard()
                raise
            backend.abort(task.epoch, [handle])

        self._degraded.losses.each("pre-commit", attempt)
        keep = [handle for epoch, handle in self._degraded.handed_out if epoch.key == task.epoch.key]
        self._degraded.harness.make().sweep(task.epoch, keep)

    def _again(self, name: str, call: Callable[[StateBackend], object]) -> None:
        self._degraded.losses.each(name, lambda: call(self._degraded.harness.make()))
        for _ in range(2):
            self._replace_worker()
            call(self._degraded.harness.make())

    def _replace_worker(self) -> None:
        if not self._degraded.held:
            self._degraded.new_worker()


class _DegradedTransaction(StateTransaction):
    """The effective attempt; its pre-commit runs the preliminary attempts first."""

    def __init__(self, state: DegradedState, degraded: DegradedStateHarness, task: TaskScope) -> None:
        assert isinstance(task, StateTaskScope)
        self._state, self._degraded, self._task = state, degraded, task
        self._inner = degraded.harness.make().start(task)
        self._staged: list[tuple[str, pa.Table]] = []
        self._discarded = False
        degraded.held.add(self)

    def view(self, table: str) -> StateView:
        return self._inner.view(table)

    def stage(self, table: str, changes: pa.Table) -> None:
        self._inner.stage(table, changes)
        self._staged.append((table, changes))

    def pre_commit(self) -> Handle:
        if not self._discarded:
            self._state.attempt(self._task, self._staged)
        handle = self._inner.pre_commit()
        self._degraded.handed_out.append((self._task.epoch, handle))
        self._degraded.held.discard(self)
        del self._inner  # released together with the worker
        return handle

    def discard(self) -> None:
        self._discarded = True
        self._inner.discard()
