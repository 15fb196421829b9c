"""Expiry of rows in replicas.

An index by time makes the cost of an epoch proportional to the rows that expire in it, not to all rows. A replica holds
the rows visible in one committed snapshot, and clocks never decrease along a lineage. Expired rows are therefore
deleted
when the replica reaches the snapshot, and look-ups do not check a clock.
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
"""Index entries converted to Python objects per step. Threads that answer look-ups run between the steps."""


class RowTimes:
    """Times that determine the expiry of rows of a state table, in microseconds; null for a row that never expires."""

    def __init__(self, table: StateTable, column: str) -> None:
        self._column = column
        self._in_key = table.time is not None and table.time.name == column
        self._keys = KeyCodec(table.address_schema)
        self._values = RowCodec(table.value_schema)

    def of(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.ChunkedArray:
        """Return the times of encoded rows."""
        rows = self._keys.decode(list(keys)) if self._in_key else self._values.decode(list(values))
        return microseconds(rows.column(self._column))


def row_times(table: StateTable) -> RowTimes | None:
    """Return the times of a table; ``None`` if its rows never expire."""
    return None if table.expires is None else RowTimes(table, table.expires.column)


class ExpiryIndex:
    """Expiry index, used within the transaction that brings a replica to a snapshot.

    Each entry maps the time and a hash of the key to the key. The entry of a rewritten or deleted row remains until its
    time is reached; the current row then determines whether it has expired.
    """

    def __init__(self, replica: Replica, transaction: lmdb.Transaction, times: RowTimes) -> None:
        self._replica = replica
        self._transaction = transaction
        self._times = times

    def note(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Add entries for rows that were put."""
        times = self._times.of([key for key, _ in rows], [value for _, value in rows]).to_pylist()
        entries = [
            (_time(time) + blake2b(key, digest_size=16).digest(), key)
            for time, (key, _) in zip(times, rows, strict=True)
            if time is not None
        ]
        with self._transaction.cursor(self._replica.times) as cursor:
            cursor.putmulti(entries)

    def drop_gone(self, horizon: int) -> int:
        """Delete the rows with times up to ``horizon``, and return their number."""
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
