"""The machines that have the slots of a placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from epochal.contracts.state import StateBackend
from epochal.tasks.arrow_tasks import prepare_worker

MACHINE: Final = "machine"


@dataclass(frozen=True)
class MachineNames:
    """A function of ``mapInArrow``: adds to each row the machine on which it is, empty if the backend names none."""

    backend: StateBackend

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            name = pa.repeat(pa.scalar(self.backend.cache_name or ""), batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, name], [*batch.schema.names, MACHINE])
