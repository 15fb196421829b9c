"""Update of a replica to a committed snapshot, in one transaction of the current generation or in a new generation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator

import lmdb

from epochal.backends.lmdb_long_keys import any_long, is_long, joined, shortened
from epochal.contracts.catalog import ManifestReference
from epochal.errors import FileMissing
from epochal.service.runtime.replicas import replica as replica_module
from epochal.service.runtime.replicas.changes import EncodedRows, RowEncoder, manifests_between
from epochal.service.runtime.replicas.expiring import ExpiryIndex, row_times
from epochal.service.runtime.replicas.generations import Generations
from epochal.service.runtime.replicas.replica import UNREADABLE, Replica
from epochal.snapshots.base_files import read_base
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import clock_of, declares, read_chains
from epochal.snapshots.manifest import BaseFile, DeltaFile
from epochal.snapshots.read_ahead import read_ahead
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

log = logging.getLogger("epochal.replicas")

_MAP_BYTES_PER_FILE_BYTE = 32
_PART_BYTES = 8 << 20
"""Size of the files that one transaction of a new generation writes."""


class Interrupted(Exception):
    """The process ends: the replica is not built."""


def catch_up(
    generations: Generations,
    store: SnapshotStore,
    head: ManifestReference,
    table: StateTable,
    stopping: Callable[[], bool] = lambda: False,
) -> Replica:
    """Bring the current generation to ``head`` by applying the missing deltas, or rebuild it from the bases.

    ``stopping``: true when the process ends; then raises :class:`Interrupted`. Readers see the previous epoch or
    ``head``, never a state in between. Raises ``FileMissing``, ``FileCorrupt``, ``StorageFull``,
    ``EnvironmentProblem``.
    """
    with generations.errors():
        replica = generations.current
        while replica is not None:
            try:
                if _bring(replica, store, head, table):
                    return replica
                break
            except lmdb.MapFullError:
                replica = generations.grow(replica)
            except UNREADABLE as error:
                log.warning("replica %s is broken (%s); rebuilding it", replica.directory, error)
                break
        return _build(generations, store, head, table, stopping)


def _bring(replica: Replica, store: SnapshotStore, head: ManifestReference, table: StateTable) -> bool:
    """Apply the missing deltas in one transaction. Returns ``False`` if they do not lead to ``head``."""
    replica.environment.reader_check()  # stale slots of killed readers would prevent the reuse of pages
    mark = replica.mark()
    if replica.table() != table:
        return False
    if mark == head.key:
        return True
    started = time.monotonic()
    manifests = None if mark is None else manifests_between(store, head, mark)
    if manifests is None or not all(declares(manifest, table.id) for manifest in manifests):
        return False
    try:
        with replica.environment.begin(write=True) as transaction:
            deltas = [delta for manifest in manifests for delta in manifest.deltas if delta.table == table.id]
            writer = _Writer(replica, transaction, read_ahead(store, (delta.file for delta in deltas)), table)
            writer.deltas(deltas)
            writer.finish(head)
    except FileMissing:
        return False  # files in between may have been collected
    seconds = time.monotonic() - started
    log.debug("replica %s is at %s (%d epochs, %.3f s)", replica.directory, head.key, len(manifests), seconds)
    return True


def _build(
    generations: Generations,
    store: SnapshotStore,
    head: ManifestReference,
    table: StateTable,
    stopping: Callable[[], bool],
) -> Replica:
    """A new generation, which has no readers. Its transactions are limited in size, since LMDB keeps changed pages in
    memory."""
    started = time.monotonic()
    chain = read_chains(store, head, [table.id])[table.id]
    map_bytes = _map_bytes(chain)
    while True:
        replica = generations.begin(map_bytes)
        try:
            for part in _parts(chain):
                if stopping():
                    raise Interrupted
                deltas = [file for file in part if isinstance(file, DeltaFile)]
                with replica.environment.begin(write=True) as transaction:
                    writer = _Writer(replica, transaction, read_ahead(store, (delta.file for delta in deltas)), table)
                    writer.bases(file for file in part if isinstance(file, BaseFile))
                    writer.deltas(deltas)
            with replica.environment.begin(write=True) as transaction:
                _Writer(replica, transaction, store, table).finish(head)
        except lmdb.MapFullError:
            generations.discard(replica)
            map_bytes *= 2
            continue
        except BaseException:
            generations.discard(replica)
            raise
        generations.adopt(replica)
        log.debug("replica %s is at %s (built, %.3f s)", replica.directory, head.key, time.monotonic() - started)
        return replica


def _parts(chain: Chain) -> Iterator[list[BaseFile | DeltaFile]]:
    """The files of a chain, oldest first, as parts of limited size."""
    part: list[BaseFile | DeltaFile] = []
    files: list[BaseFile | DeltaFile] = [*chain.bases]
    files += [delta for link in chain.links for delta in link.deltas]
    for file in files:
        if part and sum(each.file.bytes for each in part) + file.file.bytes > _PART_BYTES:
            yield part
            part = []
        part.append(file)
    if part:
        yield part


def _map_bytes(chain: Chain) -> int:
    """Return the map size, a power of two, with room for the decompressed files and for growth."""
    files = [base.file for base in chain.bases] + [delta.file for link in chain.links for delta in link.deltas]
    room = _MAP_BYTES_PER_FILE_BYTE * sum(file.bytes for file in files)
    return max(replica_module.LEAST_MAP_BYTES, 1 << (room - 1).bit_length() if room else 0)


class _Writer:
    """Writer of rows within one transaction."""

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

    def bases(self, bases: Iterable[BaseFile]) -> None:
        """Write runs, oldest first."""
        for base in bases:
            self._write(self._encoder.rows(read_base(self._store, self._table, base)))

    def deltas(self, deltas: Iterable[DeltaFile]) -> None:
        for delta in deltas:
            self._write(self._encoder.delta(self._store, delta))

    def finish(self, head: ManifestReference) -> None:
        """Delete the rows that have expired at ``head``, and set the mark to ``head``."""
        if self._expiry is not None:
            horizon = self._table.horizon(clock_of(self._store.read_manifest(head), self._table.id))
            if horizon is not None:
                self._expiry.drop_gone(horizon)
        self._replica.set_mark(self._transaction, head.key, self._table)

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
