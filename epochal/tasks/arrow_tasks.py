"""Tasks of ``mapInArrow``: over columns of any name, in a worker process that is prepared for them."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_PLAIN = re.compile(r"\w+")
GARBAGE_THRESHOLD = 50_000
MANY_MODULES = 50
"""Imported since: what they hold is worth a collection that moves it out of sight."""
_modules = 0
"""When everything was moved out of sight last."""


def map_in_arrow(frame: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """``frame.mapInArrow(task, schema)``, which would read a dot in a name as a field of a struct."""
    names = tuple(frame.columns)
    if all(map(_PLAIN.fullmatch, names)):
        return frame.mapInArrow(task, schema)
    return frame.toDF(*(f"c{position}" for position in range(len(names)))).mapInArrow(_Renamed(task, names), schema)


@dataclass(frozen=True)
class _Renamed:
    """Gives a task its columns under the names that they have."""

    task: Task
    names: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


def prepare_worker() -> None:
    """Make this process a good host of short tasks. Called at the start of every task.

    Spark's worker runs a full garbage collection after each task: all that has been imported is moved out of its sight,
    which takes a tiny task from tens of milliseconds to a few. A worker serves all operators, and what the code of the
    next one imports would be looked through after every task from then on. Tasks make rows by the hundred thousand,
    nearly all free of cycles: a young collection every 700 objects would be a good part of their time. Spark gives a
    task one core.
    """
    global _modules
    if not _modules:
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
        pa.set_cpu_count(1)
    if len(sys.modules) >= _modules + MANY_MODULES:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
