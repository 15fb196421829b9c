"""Rows read from files, without those that are gone at the snapshot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.state.column_bytes import Mask
from epochal.state.expiry import StateClock, gone
from epochal.state.table import StateTable


def without_expired(table: StateTable, rows: pa.Table, clock: StateClock | None) -> pa.Table:
    """``rows``, with at least the table's columns, but those that are gone. ``clock``: of the snapshot."""
    if table.horizon(clock) is None:
        return rows
    hidden = expired(table, rows, clock)
    return rows.filter(pa.array(~hidden)) if hidden.any() else rows


def expired(table: StateTable, rows: pa.Table, clock: StateClock | None) -> Mask:
    """Which of the rows are gone at the snapshot of ``clock``."""
    horizon = table.horizon(clock)
    if horizon is None or table.expires is None:
        return np.zeros(rows.num_rows, bool)
    return gone(rows.column(table.expires.column), horizon)
