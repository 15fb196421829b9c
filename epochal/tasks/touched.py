"""When rows of a state with a time to live were touched: the column that they expire by, and reads that refresh it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import BEGINNING
from epochal.contracts.state import StateView
from epochal.state.access import TableAccess
from epochal.state.expiry import Expiry, microseconds
from epochal.state.table import TOUCHED, StateKind, StateTable
from epochal.tasks.keys import KeyChunk

Positions = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]

READS_PER_LIFE = 10
"""Reads write a row again no more often than so many times in a time to live."""


class Touched:
    """Of one table, for one chunk of keys after the other. ``times``: of each key the time that it is called at, in
    microseconds."""

    def __init__(self, table: StateTable, expires: Expiry, view: StateView, max_parallelism: int) -> None:
        self._table = table
        self._access = TableAccess(table, view, max_parallelism)
        self._may_go_back = expires.clock == "event" and table.kind is not StateKind.LIST
        self._type = table.value_schema.field(TOUCHED.name).type
        self._between = max(1, expires.after // READS_PER_LIFE)

    def written(self, keys: KeyChunk, full_keys: pa.Table, positions: Positions, times: Times) -> pa.Array:
        """The column of rows that are written. A row that is written at an earlier event time than before lives on as
        it would have; elements of a list are written once."""
        if self._may_go_back:
            _, values = self._access.get(full_keys, keys.groups[positions])
            times = np.maximum(times, self._stored(values))
        return pa.array(times).cast(self._type)

    def refreshed(
        self, keys: KeyChunk, positions: Positions, sub_keys: pa.Table | None, times: Times
    ) -> pa.Table | None:
        """Rows that were only read, as they are, with their new time: those that were touched long enough ago.

        They have ``StateTable.delta_schema``. ``None``: there are none.
        """
        columns = [*keys.table.take(pa.array(positions)).columns, *(() if sub_keys is None else sub_keys.columns)]
        full_keys = pa.Table.from_arrays(columns, schema=self._table.key_schema)
        groups = keys.groups[positions]
        found, values = self._access.get(full_keys, groups)
        due = found & (self._stored(values) <= times - self._between)
        if not due.any():
            return None
        mask = pa.array(due)
        now = pa.array(times[due]).cast(self._type)
        place = values.column_names.index(TOUCHED.name)
        kept = values.filter(mask).set_column(place, TOUCHED.name, now)
        puts = pa.repeat(pa.scalar("put"), len(now))
        arrays = [pa.array(groups[due]), puts, *full_keys.filter(mask).columns, *kept.columns]
        return pa.Table.from_arrays(arrays, schema=self._table.delta_schema)

    def _stored(self, values: pa.Table) -> Times:
        times: Times = pc.fill_null(microseconds(values.column(TOUCHED.name)), BEGINNING).to_numpy()
        return times
