"""Comparison of two versions in a trial: state key by key, and output rows as multisets, by Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.engine.trial_report import SinkComparison, TableComparison
from epochal.snapshots.chain import Chain
from epochal.snapshots.difference import TableDifference, rows_difference
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.merging import merged
from epochal.snapshots.store import SnapshotStore
from epochal.state.json_form import to_json
from epochal.state.table import Column, StateTable
from epochal.state.type_names import quoted

EXAMPLES = 5


def compare_outputs(
    spark: SparkSession, sink: str, committed: int | None, before: Sequence[Handle], after: Sequence[Handle]
) -> SinkComparison:
    """Compare output rows on the common columns. A preflight reports columns that only one version has."""
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
    """Rows as JSON, which can be grouped by for every type, including maps. Decimals are strings, as in look-ups."""
    decimals = {field.name for field in frame.schema.fields if isinstance(field.dataType, DecimalType)}
    values = [
        F.col(quoted(name)).cast("string").alias(name) if name in decimals else F.col(quoted(name)) for name in columns
    ]
    row = F.to_json(F.struct(*values), {"ignoreNullFields": "false"})
    return frame.select(row.alias("row"), F.lit(times).alias("times"))


def _example(row: str, times: int) -> dict[str, Any]:
    return {"row": json.loads(row), "version": "before" if times > 0 else "after", "times": abs(times)}


class KeepingSink(SinkBackend):
    """Stores rows in Parquet files of ``folder``, which all tasks can access. It has no commit."""

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
        """Accepts every schema that Spark can read from Parquet."""

    def start(self, task: TaskScope) -> SinkTransaction:
        return _Kept(task, Path(self._folder) / f"{uuid4().hex}.parquet")

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Without effect: a trial decides no epoch."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Without effect: the folder is deleted with the trial."""

    def recover(self, epoch: EpochScope) -> None:
        """Without effect: the folder has one writer."""

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


def compare_states(
    store: SnapshotStore, head: ManifestReference, tables: Sequence[StateTable], after: Mapping[str, Chain]
) -> list[TableComparison]:
    """Compare all common durable state tables on their common value columns."""
    manifest = store.read_manifest(head)
    existing = {table.id: table for table in manifest.tables}
    common = [table for table in tables if table.durable and table.id in existing and existing[table.id].durable]
    before = read_chains(store, head, [table.id for table in common])
    groups = range(manifest.max_parallelism)
    return [
        _compared(
            rows_difference(
                existing[table.id],
                merged(store, existing[table.id], before[table.id], groups),
                table,
                new := merged(store, table, after[table.id], groups),
            ),
            table,
            new.num_rows,
        )
        for table in common
    ]


def _compared(difference: TableDifference, table: StateTable, rows_now: int) -> TableComparison:
    return TableComparison(
        table=table.id,
        rows=rows_now - difference.added - difference.changed,
        only_before=difference.deleted,
        only_after=difference.added,
        different=difference.changed,
        examples=tuple(_examples(difference, table)),
    )


def _examples(difference: TableDifference, table: StateTable) -> Iterator[dict[str, Any]]:
    columns = [column for column in table.value if column.name in difference.compared]
    old, new = (side.slice(0, EXAMPLES).to_pylist() for side in (difference.old, difference.new))
    for before, after, had, has in zip(old, new, difference.had[:EXAMPLES], difference.has[:EXAMPLES], strict=True):
        yield {
            "key": _json(after if has else before, table.address),
            "before": _json(before, columns) if had else None,
            "after": _json(after, columns) if has else None,
        }


def _json(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    return {column.name: to_json(row[column.name], column.type) for column in columns}
