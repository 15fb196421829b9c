"""``mapInArrow`` over columns of any name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_PLAIN = re.compile(r"\w+")


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
