"""Service provider interface of backends: the contract that a third-party backend implements.

A **backend** is the part that one sink, or the state of one operator, takes in an epoch. Epochal calls it at the
numbered steps of the epoch protocol. With every backend, an epoch is either entirely visible or not visible at all.

**A sink** is a :class:`SinkBackend` and a :class:`SinkTransaction`:

1. ``check(schema)``: when a pipeline is submitted and when a driver starts. Reject schemas here that would fail later.
2. ``recover(epoch)``: once per attempt of the driver, before any other call. Fence earlier attempts if the target can.
3. ``start(task)``: in an executor, for each task attempt. Open a resource that belongs to this transaction only and is
   invisible to readers. Spark may run two copies of a subtask concurrently, run it again, or kill it. Transactions must
   therefore share nothing and must not depend on being closed.
4. ``transaction.write(batch)`` for each Arrow batch (zero or more); then ``transaction.pre_commit()``: make the rows
   durable, keep them invisible, and return a :class:`Handle`: small JSON that suffices for a later process.
5. E3 and E4 belong to Epochal: it collects exactly one handle per subtask and publishes the epoch's manifest. **That is
   the commit decision.** A handle in a published manifest will be committed; any other handle never will.
6. ``commit(epoch, handles)``: in the driver, in epoch order. Make the rows visible, atomically if the target can. The
   call is repeated until it returns, possibly by another process and long after the commit has succeeded: recognise
   completed work and skip it. Raise ``OutcomeUnknown`` instead of guessing, and ``Fenced`` when a later attempt owns
   the target. A sink whose target takes several epochs in one transaction, or that records only epochs with rows
   (``needs_previous``), implements ``commit_decided`` instead, which receives consecutive decided epochs.
7. ``abort(epoch, handles)`` and ``sweep(epoch, keep)``: remove what was pre-committed and will never be committed.
   ``abort`` receives the handles; ``sweep`` must find leftovers without a handle (killed tasks, lost attempts).

Not guaranteed: that a started transaction is ever pre-committed or discarded; that a pre-commit's handle reaches the
driver; that a commit happens in the process, or in the hour, in which the epoch ran.

**A state backend** is a :class:`StateBackend`, a :class:`StateTransaction` and a :class:`StateView`. It serves a stable
view of the operator's state tables at the parent epoch, and turns a task's changes into deltas. Its local store is a
cache: it catches up from the chain of deltas in each :class:`StateTaskScope`, and may be lost at any time. Begin with
:class:`epochal.backends.delta.DeltaBackend`, which implements everything except the views.

The table's :class:`StateScope` determines which key groups of a state table a subtask reads. ``by_groups()`` of a
task's scope groups the tables that are read alike; ``groups`` are the key groups of such a part.

A view uses Arrow: ``lookup`` of many keys and ``ranges`` of many key ranges, both over several key groups in one call;
``range``, ``scan`` and ``get`` are built on these. Keys are the bytes of :class:`epochal.state.key_codec.KeyCodec`,
which also define the order of ranges, null first; values are the columns of ``StateTable.value_schema``. A local store
that keeps values as bytes begins with :class:`EncodedView` and implements only the look-ups in one key group.

Raise subclasses of :class:`epochal.errors.EpochalError` whose message names the failure, the object and the remedy;
translate the errors of the client library in the one place that calls it.

**Process.** A backend is created in the driver and copied to the executors by Spark: its attributes hold no connection,
lock or open file.

**Accepted streams** are declared where an author names the sink: ``SinkDefinition(.., takes=Accepted(..))``. A sink
without this declaration accepts every kind except ``changes``.

**Registration** is by entry points, in the ``pyproject.toml`` of your package::

    [project.entry-points."epochal.sinks"]
    my-sink = "my_package:MySink"

    [project.entry-points."epochal.state_backends"]
    my-state = "my_package:MyState"        # called as MyState(owner, store, cache_directory)

**Contract tests.** Subclass :class:`epochal.testing.contract.SinkBackendContract` or
:class:`epochal.testing.contract.StateBackendContract`; every promise above is a test there.
"""

from epochal.backends.delta import DeltaBackend, DeltaTransaction, OpenView
from epochal.backends.encoded_view import EncodedView
from epochal.contracts.backend import Backend, DecidedEpoch, SinkBackend, SinkTransaction, Transaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.registry import SINKS, STATE_BACKENDS
from epochal.contracts.state import KeyGroups, StateBackend, StateRows, StateTaskScope, StateTransaction, StateView
from epochal.contracts.stream_kind import Accepted, Kind, StreamKind
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateScope, StateTable

__all__ = [
    "Backend",
    "Transaction",
    "SinkBackend",
    "SinkTransaction",
    "StateBackend",
    "StateTransaction",
    "StateView",
    "StateRows",
    "DeltaBackend",
    "DeltaTransaction",
    "OpenView",
    "EncodedView",
    "DecidedEpoch",
    "Handle",
    "EpochKey",
    "EpochScope",
    "TaskScope",
    "StateTaskScope",
    "StateTable",
    "StateKind",
    "StateScope",
    "Column",
    "KeyGroups",
    "Chain",
    "Link",
    "DeltaFile",
    "BaseFile",
    "FileReference",
    "SnapshotStore",
    "Accepted",
    "Kind",
    "StreamKind",
    "SINKS",
    "STATE_BACKENDS",
]
