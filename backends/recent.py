"""Cache of recently written or read deltas, decoded, so that the next view need not read them. Paths are unique and
files never change, so entries are never stale. Bounded by bytes; per process, not shared."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np

from epochal.snapshots import read_counts
from epochal.snapshots.delta import SortedChanges, read_delta
from epochal.snapshots.manifest import DeltaFile, FileReference
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import Groups
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable

KEPT_BYTES = 128 << 20
"""Maximum number of bytes of decoded deltas, per process."""


@dataclass(frozen=True)
class EncodedChanges:
    """A delta for a local store, sorted by (key group, key); a value is ``None`` where its key was deleted."""

    groups: Groups
    keys: list[bytes]
    values: list[bytes | None]


_recent: OrderedDict[str, SortedChanges] = OrderedDict()
_bytes = 0
_lock = Lock()


def remember(file: FileReference, changes: SortedChanges) -> None:
    """Keep a delta that was just written."""
    global _bytes
    with _lock:
        if file.path in _recent:
            return
        _recent[file.path] = changes
        _bytes += changes.rows.nbytes + changes.keys.nbytes
        while _bytes > KEPT_BYTES:
            _, oldest = _recent.popitem(last=False)
            _bytes -= oldest.rows.nbytes + oldest.keys.nbytes


def is_remembered(file: FileReference) -> bool:
    """Return whether a delta is in memory."""
    with _lock:
        return file.path in _recent


def changes_of(store: SnapshotStore, table: StateTable, delta: DeltaFile) -> EncodedChanges:
    """A delta in the bytes of a local store: from memory, or else from its file, checked."""
    return encoded(columns_of(store, table, delta))


def columns_of(store: SnapshotStore, table: StateTable, delta: DeltaFile) -> SortedChanges:
    """A delta: from memory, or else from its file, checked."""
    with _lock:
        known = _recent.get(delta.file.path)
    if known is not None and known.table.delta_schema == table.delta_schema:
        read_counts.count("memory", delta.file.bytes)
        return known
    return SortedChanges.of(table, read_delta(store, table, delta))


def encoded(changes: SortedChanges) -> EncodedChanges:
    """Keys and values as the bytes of :mod:`epochal.state.row_codec`."""
    values: list[bytes | None] = list(RowCodec(changes.table.value_schema).encode(changes.rows))
    for position in np.flatnonzero(changes.deleted).tolist():
        values[position] = None
    return EncodedChanges(changes.groups, changes.keys.to_numpy(zero_copy_only=False).tolist(), values)


def forget() -> None:
    """Drop all cached deltas of this process; a forked worker starts empty."""
    global _bytes, _lock
    _lock = Lock()
    _recent.clear()
    _bytes = 0


os.register_at_fork(after_in_child=forget)
