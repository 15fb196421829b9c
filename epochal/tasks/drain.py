"""The task that reads an operator nobody else reads: its rows are dropped, its handles travel by observation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from epochal.tasks.sink import SINK_RESULT, current_partition


@dataclass(frozen=True)
class DrainTask:
    """Reads everything; gives one row of ``SINK_RESULT`` without sink and handle, so that its partition answers."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        row = {"sink": [None], "partition": [current_partition()], "handle": [None]}
        yield pa.RecordBatch.from_pydict(row, schema=SINK_RESULT)
