"""The rows that versions would write in a trial: kept in files, then compared as multisets, by Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.engine.trial_report import SinkComparison
from epochal.state.type_names import quoted

EXAMPLES = 5


def compare_outputs(
    spark: SparkSession, sink: str, committed: int | None, before: Sequence[Handle], after: Sequence[Handle]
) -> SinkComparison:
    """Columns that only one version has are no difference by themselves; a preflight names them."""
    counts = sum(handle.rows for handle in before), sum(handle.rows for handle in after)
    old, new = _frame(spark, before), _frame(spark, after)
    if old is None or new is None:
        return SinkComparison(sink, committed, *counts, *counts, ())
    columns = [name for name in old.columns if name in new.columns]
    signed = _rows(old, columns, 1).unionByName(_rows(new, columns, -1))
    differing = signed.groupBy("row").agg(F.sum("times").alias("times")).filter("times <> 0").persist()
    try:
        totals = differing.agg(
            F.coalesce(F.sum(F.greatest("times", F.lit(0))), F.lit(0)).alias("before"),
            F.coalesce(F.sum(F.greatest(-F.col("times"), F.lit(0))), F.lit(0)).alias("after"),
        ).first()
        assert totals is not None  # an aggregate without groups has one row
        some = differing.orderBy("row").limit(EXAMPLES).collect()
    finally:
        differing.unpersist()
    examples = tuple(_example(row.row, row.times) for row in some)
    return SinkComparison(sink, committed, *counts, totals.before, totals.after, examples)


def _frame(spark: SparkSession, handles: Sequence[Handle]) -> DataFrame | None:
    files = [str(handle.payload["file"]) for handle in handles if handle.rows]
    return spark.read.parquet(*files) if files else None


def _rows(frame: DataFrame, columns: Sequence[str], times: int) -> DataFrame:
    """A row as JSON: a form of every type, maps too, that can be grouped by. Decimals are texts, as in look-ups."""
    decimals = {field.name for field in frame.schema.fields if isinstance(field.dataType, DecimalType)}
    values = [
        F.col(quoted(name)).cast("string").alias(name) if name in decimals else F.col(quoted(name)) for name in columns
    ]
    row = F.to_json(F.struct(*values), {"ignoreNullFields": "false"})
    return frame.select(row.alias("row"), F.lit(times).alias("times"))


def _example(row: str, times: int) -> dict[str, Any]:
    return {"row": json.loads(row), "version": "before" if times > 0 else "after", "times": abs(times)}


class KeepingSink(SinkBackend):
    """Keeps what it gets in Parquet files of ``folder``, which all tasks reach. Nothing is committed."""

    def __init__(self, sink: str, folder: str) -> None:
        self._sink = sink
        self._folder = folder

    @property
    def kind(self) -> str:
        return "trial"

    @property
    def target(self) -> str:
        return "trial:"

    def check(self, schema: pa.Schema) -> None:
        """Whatever Spark can read back, it can keep."""

    def start(self, task: TaskScope) -> SinkTransaction:
        return _Kept(task, Path(self._folder) / f"{uuid4().hex}.parquet")

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Nothing was decided."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """The folder goes with the trial."""

    def recover(self, epoch: EpochScope) -> None:
        """Nobody else writes here."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


@dataclass
class _Kept(SinkTransaction):
    task: TaskScope
    path: Path
    rows: int = 0
    _writer: pq.ParquetWriter | None = field(default=None, init=False)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self.path, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def pre_commit(self) -> Handle:
        self._close()
        payload = {"file": str(self.path)} if self.rows else {}
        return Handle(owner=self.task.owner, subtask=self.task.subtask, rows=self.rows, bytes=0, payload=payload)

    def discard(self) -> None:
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
