"""The source: numbers of events in the driver, events in tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.connectors.nexmark.model import SCHEMA, Model
from epochal.connectors.numbered import NumberedSource
from epochal.contracts.source import PARTITION, Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITHOUT_LIMIT = 50_000
BATCH = 16_384
"""Events of a record batch: 5 MB in Arrow, which still fit the processor's cache by column."""


class NexmarkSource(NumberedSource):
    """The events of a model. With a rate they fall due as they happen, else as fast as they are taken."""

    without_limit = WITHOUT_LIMIT
    endless = (
        "Without a number of events Nexmark's have no end, so none of them are the last that is available now. "
        "Give nexmark.source events=.., or limit the run by --epochs."
    )

    def __init__(
        self,
        model: Model,
        rate: float | None = None,
        bound: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(rate, bound, clock)
        self._model = model

    @property
    def kind(self) -> str:
        return "nexmark"

    def schema(self, spark: SparkSession) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(SCHEMA)

    @property
    def partitioned(self) -> bool:
        return self._model.partitions > 1

    def partitions(self) -> frozenset[str]:
        return frozenset(map(str, range(self._model.partitions)))

    def partitions_of(self, slice: Slice) -> frozenset[str]:
        return frozenset(map(str, self._model.partitions_of(slice.start["row"], slice.end["row"])))

    def read_partitioned(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self.read(spark, slice).selectExpr("*", f"CAST(_partition AS STRING) AS {PARTITION}")

    def rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        batches = -(-(end - start) // BATCH)
        tasks = max(1, min(batches, spark.sparkContext.defaultParallelism))
        task = MakeEvents(self._model, start, end)
        return spark.range(0, batches, 1, tasks).mapInArrow(task, self.schema(spark))


@dataclass(frozen=True)
class MakeEvents:
    """For ``mapInArrow`` over the numbers of batches, the first of which begins at ``start``."""

    model: Model
    start: int
    end: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first = self.start + number * BATCH
                yield self.model.events(first, min(first + BATCH, self.end))
