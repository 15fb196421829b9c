"""Tasks over the slots of a placement (:mod:`epochal.engine.placement`): their machines, and state restored ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from epochal.contracts.state import StateBackend, StateTaskScope
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


@dataclass(frozen=True)
class Restoration:
    """A function of ``mapInArrow``: brings the caches of machines to the epoch of subtasks that will move there.

    ``scopes``: by slot, the backends and scopes of its subtasks. The rows are slots, and are returned.
    """

    scopes: Mapping[int, Sequence[tuple[StateBackend, StateTaskScope]]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for slot in batch.column(0).to_pylist():
                for backend, scope in self.scopes.get(slot, ()):
                    backend.start(scope).discard()
            yield batch
