"""Bringing a replica to a committed snapshot, in one transaction."""

from __future__ import annotations

import logging
import time

import lmdb

from epochal.backends.lmdb_long_keys import any_long, is_long, joined, shortened
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing, StorageFull
from epochal.service.runtime.replicas.changes import EncodedRows, RowEncoder, manifests_between
from epochal.service.runtime.replicas.expiring import ExpiryIndex, row_times
from epochal.service.runtime.replicas.replica import Replica
from epochal.snapshots.base_reading import read_base
from epochal.snapshots.lineage import clock_of, declares, read_chains
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

log = logging.getLogger("epochal.replicas")


def catch_up(replica: Replica, store: SnapshotStore, head: ManifestReference, table: StateTable) -> bool:
    """Bring the replica to ``head``: by the deltas that it lacks, or else from the bases. False when it was there.

    Readers see the epoch before or ``head``, never between. Raises ``FileMissing``, ``FileCorrupt``, ``StorageFull``.
    """
    if replica.mark() == head.key and replica.table() == table:
        return False
    started = time.monotonic()
    try:
        with replica.environment.begin(write=True) as transaction:
            # Another control plane may have done it since: what counts is the mark under the write lock.
            mark = replica.mark_in(transaction)
            how = _Writer(replica, transaction, store, table).bring(
                mark, head, anew=replica.table() not in (None, table)
            )
            replica.set_mark(transaction, head.key, table)
    except (lmdb.MapFullError, lmdb.DiskError) as error:
        raise StorageFull(f"There is no space left for the replica {replica.directory}: {error}.") from error
    log.debug("replica %s is at %s (%s, %.3f s)", replica.directory, head.key, how, time.monotonic() - started)
    return True


class _Writer:
    def __init__(
        self, replica: Replica, transaction: lmdb.Transaction, store: SnapshotStore, table: StateTable
    ) -> None:
        self._replica = replica
        self._transaction = transaction
        self._store = store
        self._table = table
        self._encoder = RowEncoder(table)
        times = row_times(table)
        self._expiry = None if times is None else ExpiryIndex(replica, transaction, times)

    def bring(self, mark: EpochKey | None, head: ManifestReference, anew: bool) -> str:
        how = self._apply(mark, head, anew)
        if self._expiry is not None:
            horizon = self._table.horizon(clock_of(self._store.read_manifest(head), self._table.id))
            if horizon is not None:
                self._expiry.drop_gone(horizon)
        return how

    def _apply(self, mark: EpochKey | None, head: ManifestReference, anew: bool) -> str:
        manifests = None if mark is None or anew else manifests_between(self._store, head, mark)
        if manifests is None or not all(declares(manifest, self._table.id) for manifest in manifests):
            self._build(head)
            return "built anew"
        try:
            for manifest in manifests:
                for delta in manifest.deltas:
                    if delta.table == self._table.id:
                        self._write(self._encoder.delta(self._store, delta))
        except FileMissing:
            self._build(head)  # what lies between may have been collected
            return "built anew"
        return f"{len(manifests)} epochs"

    def _build(self, head: ManifestReference) -> None:
        self._transaction.drop(self._replica.rows, delete=False)
        self._transaction.drop(self._replica.long_rows, delete=False)
        if self._expiry is not None:
            self._expiry.clear()
        chain = read_chains(self._store, head, [self._table.id])[self._table.id]
        for base in chain.bases:
            self._write(self._encoder.rows(read_base(self._store, self._table, base)))
        for link in chain.links:
            for delta in link.deltas:
                self._write(self._encoder.delta(self._store, delta))

    def _write(self, rows: EncodedRows) -> None:
        with self._transaction.cursor(self._replica.rows) as cursor:
            for chunk in rows.puts():
                if self._expiry is not None:
                    self._expiry.note(chunk)
                if any_long(key for key, _ in chunk):
                    self._put_long([(key, value) for key, value in chunk if is_long(key)])
                    chunk = [(key, value) for key, value in chunk if not is_long(key)]
                cursor.putmulti(chunk)
        for keys in rows.deletes():
            for key in keys:
                if is_long(key):
                    self._transaction.delete(shortened(key), db=self._replica.long_rows)
                else:
                    self._transaction.delete(key, db=self._replica.rows)

    def _put_long(self, rows: list[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            self._transaction.put(shortened(key), joined(key, value), db=self._replica.long_rows)
