"""Running a task as the function of ``mapInArrow``: columns with any names, settings of the Python worker process."""

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
"""Number of newly imported modules after which the collector runs and freezes what they hold."""
_modules = 0
"""Number of loaded modules at the last freeze; 0 before the first."""


def map_in_arrow(frame: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """``frame.mapInArrow(task, schema)`` for columns with any names; Spark reads a dot in a name as a struct field."""
    names = tuple(frame.columns)
    if all(map(_PLAIN.fullmatch, names)):
        return frame.mapInArrow(task, schema)
    return frame.toDF(*(f"c{position}" for position in range(len(names)))).mapInArrow(_Renamed(task, names), schema)


@dataclass(frozen=True)
class _Renamed:
    """Calls a task with the original names of its columns."""

    task: Task
    names: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


def prepare_worker() -> None:
    """Configure this process for short tasks. Every task calls this first.

    Spark's worker runs a full garbage collection after each task. Freezing all imported objects reduces a tiny task
    from tens of milliseconds to a few. A worker serves all operators, so the freeze is repeated when further modules
    have been imported. Tasks create rows by the hundred thousand, nearly all without cycles; a young collection every
    700 objects would take a large part of their time. Spark gives a task one core.
    """
    global _modules
    if not _modules:
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
        pa.set_cpu_count(1)
    if len(sys.modules) >= _modules + MANY_MODULES:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
