"""The backend contract: start, pre-commit, commit, abort, and what recovery needs (thesis 4.1.4, table 4.1).

A *backend* is one operator's state or one sink of one application. It is made in the driver, once per attempt; Spark
carries a copy of it to the executors, so it must be serialisable and hold no connection, lock or open file.

====================  =========  ==================================================================================
call                  process    when
====================  =========  ==================================================================================
``succeed``           driver     R1, once per attempt, where the application has other branches; sinks only
``recover``           driver     R1..R4, once per attempt, before any other call of that attempt
``start``             executor   E2/T1, once per task attempt; also again for the same subtask, when Spark retries,
                                 speculates, or runs a lost stage again. Attempts of one subtask may run at once
``write``             executor   E2/T2, any number of times, also never
``pre_commit``        executor   E2/T3, at most once, last; its handle is the task's only trace
``discard``           executor   instead of ``pre_commit`` when the task fails; best effort, may never be called
``commit``            driver     E5, in epoch order, after the manifest was published; repeated until it returns,
                                 also by later attempts, also when it had already succeeded
``abort``             driver     with handles that are in no published manifest, and never will be
``sweep``             driver     after E6 and in R4: remove what no handle names
====================  =========  ==================================================================================

Never guaranteed: that a transaction that was started is ever pre-committed or discarded; that every handle reaches the
driver; that ``abort`` is called for every lost transaction (``sweep`` finds those); that ``commit`` is called by the
process that opened the epoch.

Faults inside a call are raised as :class:`epochal.errors.EpochalError`. ``Fenced`` stops the process; anything else in
``start`` .. ``pre_commit`` aborts the epoch, in ``commit`` is tried again later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from epochal.contracts.catalog import Succession
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope

if TYPE_CHECKING:
    from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True)
class SinkPlace:
    """What a sink's backend is created with: its name in the pipeline, and the application's snapshot store.

    ``store`` is for what must be durable before it is visible (a write-ahead log). It is ``None`` while a pipeline is
    only analysed: then ``target`` and ``check`` are called, and nothing is written. ``delivery``: one of those that the
    sink's definition names.
    """

    sink: str
    store: SnapshotStore | None = None
    delivery: Delivery = "exactly_once"


def names_place(target: str) -> bool:
    """Whether a sink's target is a place of its own; ``console:`` is not, and may be shared."""
    return not target.endswith(":")


class Transaction(ABC):
    """What one task attempt writes: durable and invisible after ``pre_commit``, without trace after ``discard``."""

    @abstractmethod
    def pre_commit(self) -> Handle:
        """Make everything written durable but invisible, and say where it is. T3."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written so far. Must not raise; may be called after any failure, never after pre-commit."""


class SinkTransaction(Transaction):
    """A transaction that takes output rows."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch with the sink's columns. Batches of one transaction keep their order."""


TransactionType = TypeVar("TransactionType", bound=Transaction, covariant=True)


class Backend(ABC, Generic[TransactionType]):
    """Start, pre-commit (on the transaction), commit, abort; and recover and sweep."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The backend's registered name, as it stands in manifests: ``files``, ``kafka``, ``lmdb``, .."""

    @abstractmethod
    def start(self, task: TaskScope) -> TransactionType:
        """T1. Open a transaction for one task attempt. Two attempts of one subtask must never share a file or id."""

    @abstractmethod
    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """E5. Make the handles' writes visible, all at once where the target allows it. Idempotent.

        Returns only when the commit is known to have landed. Raises ``OutcomeUnknown`` when it cannot be known yet,
        ``Fenced`` when a later attempt owns the target, ``SinkError`` with the fix otherwise.
        """

    @abstractmethod
    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Undo pre-commits whose handles are in no published manifest. Idempotent: absent is done."""

    @abstractmethod
    def recover(self, epoch: EpochScope) -> None:
        """R1. Take the target over for ``epoch.attempt``: fence earlier attempts where it can, check it is there.

        ``epoch.key`` is the latest prepared epoch, or epoch 0 of the branch when there is none. Idempotent.
        """

    @abstractmethod
    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        """Remove what attempts up to ``epoch.attempt`` left of exactly this epoch and ``keep`` does not name.

        Called with ``keep=[]`` for an aborted epoch. Returns how many things were removed. Idempotent.
        """


class SinkBackend(Backend[SinkTransaction]):
    """The backend behind a sink."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Where the rows go, comparable, without secrets (``files:/data/out``): a fork must name another.

        A target that ends with its colon (``console:``) names no place, and may be shared.
        """

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        """R1, before ``recover``: other branches of the application have written to this target, before a rollback.

        Take from them what belongs to one branch at a time, and, when asked, hide what they left behind. Nothing is to
        be done where each branch has a mark of its own and rows cannot be taken back (Kafka, databases). Idempotent.
        """

    def shown(self, epoch: EpochScope) -> int | None:
        """The number of the latest epoch of ``epoch.branch`` that the target shows; 0 when it shows none.

        ``None``: it does not say so by itself. Asked after a catalog was restored from a backup, in any process, with
        the branch's latest decided epoch. Only reads: nobody is fenced, nothing is made. Raises ``SinkError``.
        """
        return None

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """At submission and start: can rows of this schema be written here? Raises ``SinkError`` or ``SchemaError``."""

    def check_types(self, schema: pa.Schema) -> None:
        """In tests: the part of :meth:`check` that contacts nothing. A sink whose ``check`` asks its target overrides
        it. Raises ``SinkError`` or ``SchemaError``."""
        self.check(schema)
