"""Rows that are sorted by key, in chunks that never split a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.tasks.values import run_starts

CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Chunk:
    """``rows`` in one piece; key i has the rows from ``starts[i]`` up to ``starts[i + 1]`` or the end."""

    rows: pa.Table
    starts: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def ends(self) -> list[int]:
        return [*self.starts[1:].tolist(), self.rows.num_rows]


def whole_keys(batches: Iterator[pa.RecordBatch], key: Sequence[str], target_rows: int) -> Iterator[Chunk]:
    """Chunks of about ``target_rows`` rows; larger only where a single key has more rows than that."""
    pending: list[pa.RecordBatch] = []
    rows, enough = 0, target_rows
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows < enough:
            continue
        table = pa.Table.from_batches(pending).combine_chunks()
        starts = run_starts(table, key)
        last = int(starts[-1])
        if last > 0:
            yield Chunk(table.slice(0, last), starts[:-1])
        # The last key may go on in the next batch. Doubling keeps a key of very many rows from being copied each time.
        pending = table.slice(last).to_batches()
        rows = table.num_rows - last
        enough = target_rows if last > 0 else 2 * rows
    if rows:
        table = pa.Table.from_batches(pending).combine_chunks()
        yield Chunk(table, run_starts(table, key))
