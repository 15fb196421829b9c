"""Keeping local stores small: what is gone at the epoch that a store is at, it need not keep.

Clocks never fall along a lineage, and a store serves the epoch that it is at, or is built anew: so nobody misses these
rows. An open view of an older epoch is untouched: it has a copy, or is a transaction of its own.

In a time-ordered table that expires by its time, what is gone lies first in each key group, and goes with every epoch.
What expires by a value is looked for when a store has grown to twice what the last look left: so it costs a constant
share of what is written, and no more than twice the rows that live are kept.
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
"""Of one key group: below, nothing is looked for."""


@dataclass(frozen=True)
class Pruning:
    """What can go of one state table at the epoch of a view. ``before``: all keys below; ``None``: it is the values
    that say."""

    table: StateTable
    horizon: int
    before: bytes | None

    def gone(self, values: Sequence[bytes]) -> Sequence[bool]:
        """Which rows are, by their encoded values."""
        assert self.table.expires is not None
        rows = RowCodec(self.table.value_schema).decode(list(values))
        found: list[bool] = gone(rows.column(self.table.expires.column), self.horizon).tolist()
        return found


def prunings(scope: StateTaskScope) -> dict[str, Pruning]:
    """By state table, for those of which anything can be gone at ``scope.view_at``."""
    found = {}
    for table in scope.tables:
        horizon = table.horizon(scope.chains[table.id].clock)
        if horizon is not None and table.expires is not None:
            by_key = table.time is not None and table.time.name == table.expires.column
            found[table.id] = Pruning(table, horizon, first_key(horizon) if by_key else None)
    return found


def is_due(rows: int, left: int) -> bool:
    """Whether values are to be looked at: of ``rows``, of which the last look left so many."""
    return rows >= max(FEWEST_ROWS, 2 * left)
