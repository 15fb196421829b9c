"""The backend contract: start, pre-commit, commit, abort, and the calls of recovery (thesis 4.1.4, table 4.1).

A *backend* is one operator's state or one sink of one application. The driver creates it once per attempt; Spark
serialises copies of it to the executors, so it must be serialisable and hold no connection, lock or open file.

====================  =========  ==================================================================================
call                  process    when
====================  =========  ==================================================================================
``succeed``           driver     R1, once per attempt, where the application has other branches; sinks only
``recover``           driver     R1..R4, once per attempt, before any other call of that attempt
``start``             executor   E2/T1, once per task attempt; also again for the same subtask, when Spark retries,
                                 speculates, or runs a lost stage again. Attempts of one subtask may run
                                 concurrently
``write``             executor   E2/T2, any number of times, including zero
``pre_commit``        executor   E2/T3, at most once, last; its handle is the task's only trace
``discard``           executor   instead of ``pre_commit`` when the task fails; best effort, may never be called
``commit``            driver     E5, in epoch order, after the manifest was published; repeated until it returns,
                                 also by later attempts, and after it has succeeded
``abort``             driver     with handles that no published manifest names or will name
``sweep``             driver     after E6 and in R4: remove files that no handle names
====================  =========  ==================================================================================

Not guaranteed: that a started transaction is pre-committed or discarded; that every handle reaches the driver; that
``abort`` is called for every lost transaction (``sweep`` finds those); that the process that opened the epoch calls
``commit``.

Errors are raised as :class:`epochal.errors.EpochalError`. ``Fenced`` stops the process. Any other error aborts the
epoch in ``start`` to ``pre_commit``, and is retried later in ``commit``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import pyarrow as pa

from epochal.contracts.catalog import EpochRange, RestorePoint, Succession
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import InvalidInput

if TYPE_CHECKING:
    from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True)
class SinkPlace:
    """Arguments of a sink's backend: its name in the pipeline, and the application's snapshot store.

    ``store`` holds data that must be durable before it is visible (a write-ahead log). It is ``None`` while a pipeline
    is analysed: then only ``target`` and ``check`` are called, and nothing is written. ``delivery``: one of the
    deliveries that the sink's definition names.
    """

    sink: str
    store: SnapshotStore | None = None
    delivery: Delivery = "exactly_once"


@dataclass(frozen=True)
class DecidedEpoch:
    """A sink's part of a decided epoch, as ``commit_decided`` receives it.

    ``previous``: the latest earlier epoch of the same branch whose manifest has rows of this target; ``None`` if there
    is none. It is known only to sinks with ``needs_previous``. ``given_up``: an administrator has given up the sink's
    part, so that it has no handles.
    """

    scope: EpochScope
    handles: tuple[Handle, ...]
    previous: int | None = None
    given_up: bool = False

    @property
    def epoch(self) -> int:
        return self.scope.epoch

    @property
    def rows(self) -> int:
        return sum(handle.rows for handle in self.handles)


@dataclass(frozen=True)
class Buffering:
    """A sink that collects decided epochs and commits them together: after ``seconds`` at the latest, or with
    ``most_epochs`` epochs or ``most_bytes`` of staged rows, and at each stop, savepoint, upgrade and recovery."""

    seconds: float
    most_epochs: int = 10_000
    most_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True)
class TableCompaction:
    """Result of a compaction of a table: files that it replaced, files that replace them, and their sizes in bytes.

    ``version``: the version of the table that shows it; ``None`` if nothing was compacted."""

    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int
    version: int | None


def names_place(target: str) -> bool:
    """True if two sinks cannot share the target; ``console:`` can be shared."""
    return not target.endswith(":")


class Transaction(ABC):
    """Writes of one task attempt: durable and invisible after ``pre_commit``, removed after ``discard``."""

    @abstractmethod
    def pre_commit(self) -> Handle:
        """Make all writes durable but invisible, and return where they are. T3."""

    @abstractmethod
    def discard(self) -> None:
        """Remove all writes so far. Must not raise; may be called after any failure, never after pre-commit."""


class SinkTransaction(Transaction):
    """A transaction that takes output rows."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch with the sink's columns. Batches of one transaction keep their order.

        Raises ``RowRejected``, before it has taken any row of the batch, if the target would refuse a row. The caller
        may continue with a part of the batch.
        """


TransactionType = TypeVar("TransactionType", bound=Transaction, covariant=True)


class Backend(ABC, Generic[TransactionType]):
    """Start, pre-commit (on the transaction), commit, abort; and recover and sweep."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The backend's registered name, as manifests have it: ``files``, ``kafka``, ``lmdb``, .."""

    @abstractmethod
    def start(self, task: TaskScope) -> TransactionType:
        """T1. Open a transaction for one task attempt. Two attempts of one subtask must never share a file or id."""

    @abstractmethod
    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """E5. Make the handles' writes visible, atomically where the target allows it. Idempotent.

        Returns only when the commit is known to have succeeded. Raises ``OutcomeUnknown`` when this cannot be known
        yet, ``Fenced`` when a later attempt owns the target, ``SinkError`` with the fix otherwise.
        """

    @abstractmethod
    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Undo pre-commits whose handles are in no published manifest. Idempotent: a missing file counts as removed."""

    @abstractmethod
    def recover(self, epoch: EpochScope) -> None:
        """R1. Take the target over for ``epoch.attempt``: fence earlier attempts where possible, check that it exists.

        ``epoch.key`` is the latest prepared epoch, or epoch 0 of the branch when there is none. Idempotent.
        """

    @abstractmethod
    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        """Remove files of exactly this epoch that attempts up to ``epoch.attempt`` wrote and ``keep`` does not name.

        Called with ``keep=[]`` for an aborted epoch. Returns the number of removed items. Idempotent.
        """


class SinkBackend(Backend[SinkTransaction]):
    """The backend behind a sink."""

    needs_previous: ClassVar[bool] = False
    """True for a sink that records the epoch only when it commits rows, and checks which epoch it had committed."""

    @property
    def buffering(self) -> Buffering | None:
        """Limits within which ``commit_decided`` receives several epochs; ``None``: one after the other."""
        return None

    @property
    @abstractmethod
    def target(self) -> str:
        """Destination of the rows, comparable, without secrets (``files:/data/out``). A fork must name a different one.

        A target that ends with a colon (``console:``) can be shared.
        """

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        """E5. Commit consecutive decided epochs of one branch, oldest first; as ``commit``, which it calls by default.

        A sink that commits several epochs in one transaction of its target overrides it."""
        for each in epochs:
            self.commit(each.scope, each.handles)

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        """R1, before ``recover``: take the target over from other branches of the application that wrote to it before a
        rollback.

        Acquires what only one branch can own at a time and, if ``move_aside`` is set, hides rows that the rollback left
        behind. No action is needed where each branch has its own mark and rows cannot be withdrawn (Kafka, databases).
        Idempotent.
        """

    def shown(self, epoch: EpochScope) -> int | None:
        """The number of the latest epoch of ``epoch.branch`` that the target shows; 0 when it shows none.

        ``None``: the target does not record epochs. Called after a catalog was restored from a backup, in any process,
        with the branch's latest decided epoch. Read-only: it fences no attempt and creates nothing. Raises
        ``SinkError``.
        """
        return None

    def restore_point(self, left: Mapping[str, EpochRange]) -> RestorePoint | None:
        """The version of the target to which a user can restore it after a rollback. ``left``: by branch, the epochs
        that the rollback leaves behind.

        ``None``: the target is not a table of versions. Called in any process. Read-only. Raises ``SinkError``.
        """
        return None

    def optimize(self, note: Callable[[str], None]) -> TableCompaction:
        """Replace small files of the table that the sink writes by larger ones, with the same rows.

        Called in a thread of the driver, beside commits of the same sink, which must not fail or wait for long because
        of it. It can be repeated at any time. ``note``: reports progress, for display. Raises ``SinkError``, and
        ``InvalidInput`` for a sink whose target has no files that it can compact, as by default.
        """
        raise InvalidInput(f"{self.target} is not a Delta table: its files cannot be compacted.")

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Check, at submission and start, that rows of this schema can be written. Raises ``SinkError`` or
        ``SchemaError``."""

    def warnings(self) -> Sequence[str]:
        """Settings of the target that can stop the sink later, each with the fix, and changes of the target that the
        start makes. Called after :meth:`check`, at submission. Raises ``SinkError`` and ``SchemaError``."""
        return ()

    def check_types(self, schema: pa.Schema) -> None:
        """Part of :meth:`check` that contacts no server, for tests. A sink whose ``check`` contacts its target
        overrides it. Raises ``SinkError`` or ``SchemaError``."""
        self.check(schema)
