"""Additions to counts, computed by key on columns, without a step per call.

A fan-out that counts sends a row for each key of each call. If an epoch has no other access to the state, the order of
additions has no effect, as long as no intermediate sum can exceed 64 bits. If no other access is possible at all, the
sending subtask adds up the rows of a key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.programs.calls import Arrived, Numbers
from epochal.programs.declaration import StateElement
from epochal.programs.distribution import Distribution
from epochal.programs.maps import Counter, Map
from epochal.programs.value_types import INT
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import delta_rows

ADD = "add"
_LARGEST = 2**63 - 1


def added(element: StateElement, table: StateTable, subtask: Subtask, parts: Sequence[Arrived]) -> bool:
    """Stage the additions of ``parts``, all rows of the stage in this epoch, to partitioned state.

    Returns ``False``, and stages nothing, if the rows have other effects.
    """
    parts = [part for part in parts if len(part)]
    if not parts or not _only_adds(element, parts):
        return False
    names = element.kind.parameters(ADD)
    key, amount = (pa.chunked_array([part.values[number] for part in parts]) for number in range(len(names)))
    sums = pa.table({"key": key, "amount": amount}).group_by("key", use_threads=False).aggregate([("amount", "sum")])
    sums = sums.sort_by("key")
    owners = pa.table([sums["key"].combine_chunks()], schema=table.owner_schema)
    access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
    found, rows = access.get(owners)
    before = rows.column(0).combine_chunks()
    if _largest(before) + _largest(amount) * len(amount) > _LARGEST:
        return False
    # A stored null has exceeded 64 bits before, and stays null.
    total = pc.add(pc.if_else(pa.array(found), before, pa.scalar(0, pa.int64())), sums["amount_sum"].combine_chunks())
    groups = table.key_groups(owners, subtask.max_parallelism)
    subtask.transaction.stage(table.id, delta_rows(table, groups, "put", [owners.column(0), total]))
    return True


def counts(element: StateElement) -> bool:
    """True if :data:`ADD` adds integers by key in this element."""
    return (
        element.kind in (Counter, Map)
        and element.distribution is Distribution.PARTITIONED
        and element.model.value[0].type is INT
    )


def summed(key: pa.Array, amount: pa.Array) -> tuple[Numbers, pa.Array] | None:
    """The position of one row of each key, and the sum of its amounts; ``None`` if a sum may exceed 64 bits."""
    if _largest(amount) * len(amount) > _LARGEST:
        return None
    rows = pa.table({"key": key, "amount": amount, "row": np.arange(len(key))})
    sums = rows.group_by("key", use_threads=False).aggregate([("amount", "sum"), ("row", "min")])
    positions: Numbers = sums["row_min"].to_numpy()
    return positions, sums["amount_sum"].combine_chunks()


def _only_adds(element: StateElement, parts: Sequence[Arrived]) -> bool:
    return counts(element) and all(part.method == ADD for part in parts)


def _largest(numbers: pa.Array | pa.ChunkedArray) -> int:
    """The greatest absolute value."""
    bounds = pc.min_max(numbers).as_py()
    return max((abs(bound) for bound in bounds.values() if bound is not None), default=0)
