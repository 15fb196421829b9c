"""Rows read from files, without those that are gone at the snapshot."""

from __future__ import annotations

import pyarrow as pa

from epochal.state.expiry import StateClock, gone
from epochal.state.table import StateTable


def without_expired(table: StateTable, rows: pa.Table, clock: StateClock | None) -> pa.Table:
    """``rows``, with at least the table's columns, but those that are gone. ``clock``: of the snapshot."""
    horizon = table.horizon(clock)
    if horizon is None or table.expires is None:
        return rows
    hidden = gone(rows.column(table.expires.column), horizon)
    return rows.filter(pa.array(~hidden)) if hidden.any() else rows
