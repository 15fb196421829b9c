"""Pruning of local stores: removal of rows that have expired at the store's epoch.

Clocks never move back along a lineage, and a store serves its own epoch or is rebuilt: no view needs these rows. An
open view of an older epoch is unaffected: it has a copy, or a separate transaction.

In a time-ordered table that expires by its time, expired rows lie first in each key group and are removed at each
epoch. Rows that expire by a value are searched for when a store has twice the rows that the last search left. The cost
is a constant share of the rows written, and at most twice the live rows are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochal.contracts.state import StateTaskScope
from epochal.state.expiry import gone
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable
from epochal.state.unexpired import first_key

FEWEST_ROWS = 1024
"""Minimum number of rows of one key group for a search."""


@dataclass(frozen=True)
class Pruning:
    """Rows of one state table to be removed at the epoch of a view. ``before``: all keys below it; ``None``: by
    value."""

    table: StateTable
    horizon: int
    before: bytes | None

    def gone(self, values: Sequence[bytes]) -> Sequence[bool]:
        """Return which rows have expired, by their encoded values."""
        assert self.table.expires is not None
        rows = RowCodec(self.table.value_schema).decode(list(values))
        found: list[bool] = gone(rows.column(self.table.expires.column), self.horizon).tolist()
        return found


def prunings(scope: StateTaskScope) -> dict[str, Pruning]:
    """Return the prunings by state table, for tables with expiring rows at ``scope.view_at``."""
    found = {}
    for table in scope.tables:
        horizon = table.horizon(scope.chains[table.id].clock)
        if horizon is not None and table.expires is not None:
            by_key = table.time is not None and table.time.name == table.expires.column
            found[table.id] = Pruning(table, horizon, first_key(horizon) if by_key else None)
    return found


def is_due(rows: int, left: int) -> bool:
    """Return whether values must be searched: a store has ``rows`` rows; the last search left ``left``."""
    return rows >= max(FEWEST_ROWS, 2 * left)
