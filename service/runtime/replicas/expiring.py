"""Rows of replicas that expire: an index by their times, so that an epoch costs what expires in it, and not all rows.

A replica holds what one committed snapshot shows, and clocks never fall along a lineage: so what is gone is deleted
when the replica reaches the snapshot, and no look-up has to look at a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import lmdb
import pyarrow as pa

from epochal.backends.lmdb_long_keys import is_long, shortened, split
from epochal.service.runtime.replicas.replica import Replica
from epochal.state.expiry import gone, microseconds
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable

_AT_ONCE = 1024
"""Rows that become Python objects at once: other threads, which answer look-ups, get their turn in between."""


class RowTimes:
    """The times by which rows of a state table expire, in microseconds; null where a row never does."""

    def __init__(self, table: StateTable, column: str) -> None:
        self._column = column
        self._in_key = table.time is not None and table.time.name == column
        self._keys = KeyCodec(table.address_schema)
        self._values = RowCodec(table.value_schema)

    def of(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.ChunkedArray:
        """Of encoded rows."""
        rows = self._keys.decode(list(keys)) if self._in_key else self._values.decode(list(values))
        return microseconds(rows.column(self._column))


def row_times(table: StateTable) -> RowTimes | None:
    """``None`` where rows never expire."""
    return None if table.expires is None else RowTimes(table, table.expires.column)


class ExpiryIndex:
    """Within the transaction that brings a replica to a snapshot.

    An entry is the time and a hash of the key, and holds the key. A row that was written again, or deleted, leaves its
    entry behind until its time comes: then the row itself says whether it is gone.
    """

    def __init__(self, replica: Replica, transaction: lmdb.Transaction, times: RowTimes) -> None:
        self._replica = replica
        self._transaction = transaction
        self._times = times

    def note(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Rows that were put."""
        times = self._times.of([key for key, _ in rows], [value for _, value in rows]).to_pylist()
        entries = [
            (_time(time) + blake2b(key, digest_size=16).digest(), key)
            for time, (key, _) in zip(times, rows, strict=True)
            if time is not None
        ]
        with self._transaction.cursor(self._replica.times) as cursor:
            cursor.putmulti(entries)

    def drop_gone(self, horizon: int) -> int:
        """Delete the rows with times up to ``horizon``; how many there were."""
        dropped, last = 0, _time(horizon)
        while True:
            with self._transaction.cursor(self._replica.times) as cursor:
                due = takewhile(lambda entry: bytes(entry[0][:8]) <= last, cursor) if cursor.first() else iter(())
                entries = [(bytes(entry), bytes(key)) for (entry, key), _ in zip(due, range(_AT_ONCE), strict=False)]
            if not entries:
                return dropped
            for entry, _ in entries:
                self._transaction.delete(entry, db=self._replica.times)
            dropped += self._drop([key for _, key in entries], horizon)

    def _drop(self, keys: Sequence[bytes], horizon: int) -> int:
        rows = {key: value for key in keys if (value := self._value(key)) is not None}
        expired = gone(self._times.of(list(rows), list(rows.values())), horizon)
        for key, is_gone in zip(rows, expired.tolist(), strict=True):
            if is_gone:
                stored, database = self._place(key)
                self._transaction.delete(stored, db=database)
        return int(expired.sum())

    def _value(self, key: bytes) -> bytes | None:
        stored, database = self._place(key)
        value = self._transaction.get(stored, db=database)
        if value is None:
            return None
        return split(bytes(value))[1] if is_long(key) else bytes(value)

    def _place(self, key: bytes) -> tuple[bytes, Any]:
        return (shortened(key), self._replica.long_rows) if is_long(key) else (key, self._replica.rows)


def _time(time: int) -> bytes:
    return (time + (1 << 63)).to_bytes(8, "big")
