"""The rows of several inputs told apart again, a batch at a time: the planner has united them for one shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from epochal.tasks.calls import INPUT


def carried_name(number: int, name: str) -> str:
    """How column ``name`` of the input ``number`` is called among the united columns."""
    return f"_{number}_{name}"


@dataclass(frozen=True)
class InputColumns:
    """The columns of one of several inputs: their ``names``, in the author's order, and how they are ``carried``."""

    names: tuple[str, ...]
    carried: tuple[str, ...]

    @classmethod
    def of(cls, number: int, names: Sequence[str], keys: Sequence[str] = (), key: Sequence[str] = ()) -> InputColumns:
        """``keys``: those of ``names`` that the input is distributed by; ``key``: the operator's names for them."""
        keyed = dict(zip((name.casefold() for name in keys), key, strict=True))
        return cls(tuple(names), tuple(keyed.get(name.casefold(), carried_name(number, name)) for name in names))

    def own(self, rows: pa.RecordBatch, *beside: str) -> pa.RecordBatch:
        """The input's own columns of united rows under their own names, and the columns ``beside``."""
        return rows.select([*self.carried, *beside]).rename_columns([*self.names, *beside])


def by_input(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Runs of united rows that are of the same input, with the input's number."""
    for batch in batches:
        if not batch.num_rows:
            continue
        numbers = batch.column(INPUT).to_numpy(zero_copy_only=False)
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), batch.num_rows]
        for first, end in pairwise(bounds):
            yield int(numbers[first]), batch.slice(first, end - first)
