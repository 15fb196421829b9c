"""What to implement for a backend of your own, in one place.

A **backend** is how one sink, or the state of one operator, takes part in an epoch. Epochal calls it at the numbered
steps of the epoch protocol; whatever the backend, an epoch is either wholly visible or never happened.

**A sink** is a :class:`SinkBackend` and a :class:`SinkTransaction`:

1. ``check(schema)``, when a pipeline is submitted and when a driver starts: refuse here what could only fail later.
2. ``recover(epoch)``, once per attempt of the driver, before anything else: fence earlier attempts if the target can.
3. ``start(task)``, in an executor, for each task attempt: open something of its own that nobody can see. Spark may run
   the same subtask twice at once, run it again, or kill it; so nothing may be shared between transactions, and nothing
   may be expected to be closed.
4. ``transaction.write(batch)`` for each Arrow batch, also never; then ``transaction.pre_commit()``: make it durable,
   leave it invisible, and return a :class:`Handle`: small JSON that is all that a later process needs.
5. E3 and E4 are Epochal's: it collects exactly one handle per subtask and publishes the epoch's manifest. **That is the
   commit decision.** A handle in a published manifest will be committed; any other never will.
6. ``commit(epoch, handles)``, in the driver, in epoch order: make it visible, at once if the target can. It is repeated
   until it returns, also by another process, also long after it had landed: recognise what is done, and skip it. Raise
   ``OutcomeUnknown`` rather than guess, and ``Fenced`` when a later attempt owns the target.
7. ``abort(epoch, handles)`` and ``sweep(epoch, keep)``: remove what was pre-committed and will never be committed.
   ``abort`` knows the handles; ``sweep`` has to find what no handle names any more (killed tasks, lost attempts).

Never guaranteed: that a started transaction is ever pre-committed or discarded; that a pre-commit's handle reaches the
driver; that a commit happens in the process, or in the hour, in which the epoch ran.

**A state backend** is a :class:`StateBackend`, a :class:`StateTransaction` and a :class:`StateView`. It serves a stable
view of the operator's state tables at the parent epoch, and turns a task's changes into deltas. Its local store is a
cache: it catches up from the chain of deltas that each :class:`StateTaskScope` brings, and may be lost at any time.
Begin with :class:`epochal.backends.delta.DeltaBackend`, which does all but the views.

Which key groups of a state table a subtask reads is for the table's :class:`StateScope` to say. ``by_groups()`` of a
task's scope puts tables together that are read alike; ``groups`` are the key groups of such a part.

A view speaks Arrow: ``lookup`` of many keys, ``ranges`` of many ranges of keys, both over several key groups at once;
``range``, ``scan`` and ``get`` are made of these. Keys are the bytes of :class:`epochal.state.key_codec.KeyCodec`, in
whose order, null first, ranges lie; values are the columns of ``StateTable.value_schema``. A local store that keeps
values as bytes begins with :class:`EncodedView`, to which it only says what it finds in one key group.

Raise :class:`epochal.errors.EpochalError` subclasses that say what happened, to what, and what to do; translate the
errors of the client library at the one place that calls it.

**Where it runs.** A backend is made in the driver and copied to the executors by Spark: its attributes hold no
connection, lock or open file.

**Which streams it takes** is said where an author names it: ``SinkDefinition(.., takes=Accepted(..))``. A sink that
does not say takes every kind but ``changes``.

**Registration** is by entry points, in the ``pyproject.toml`` of your package::

    [project.entry-points."epochal.sinks"]
    my-sink = "my_package:MySink"

    [project.entry-points."epochal.state_backends"]
    my-state = "my_package:MyState"        # called as MyState(owner, store, cache_directory)

**Does it keep the contract?** Subclass :class:`epochal.testing.contract.SinkBackendContract` or
:class:`epochal.testing.contract.StateBackendContract`; every promise above is a test there.
"""

from epochal.backends.delta import DeltaBackend, DeltaTransaction, OpenView
from epochal.backends.encoded_view import EncodedView
from epochal.contracts.backend import Backend, SinkBackend, SinkTransaction, Transaction
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
