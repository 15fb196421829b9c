"""Sources and sinks of the author's harness: rows that a test provides, rows that it reads back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.errors import SourceError
from epochal.state.type_names import quoted


class InMemorySource(Source):
    """A source whose slices are DataFrames that the test provides, one per epoch."""

    def __init__(self, name: str, schema: StructType) -> None:
        self._name = name
        self._schema = schema
        self._frames: list[DataFrame] = []
        self._position = 0

    @property
    def kind(self) -> str:
        return "in-memory"

    @property
    def ended(self) -> bool:
        return self._position >= len(self._frames)

    def schema(self, spark: SparkSession) -> StructType:
        return self._schema

    def give(self, frame: DataFrame) -> None:
        """The rows of the next epoch."""
        self._frames.append(frame)

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = len(slices) + (checkpoint or {}).get("position", 0)

    def checkpoint(self) -> dict[str, Any]:
        return {"position": self._position}

    def limit_to_available(self) -> None:
        """All of it is."""

    def plan(self, limits: SliceLimits) -> Slice | None:
        if self._position >= len(self._frames):
            return None
        return Slice(start={"position": self._position}, end={"position": self._position + 1})

    def accept(self, slice: Slice) -> None:
        self._position = slice.end["position"]

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        frame = self._frames[slice.start["position"]]
        missing = [name for name in self._schema.names if name not in frame.columns]
        if missing:
            raise SourceError(f"The rows given to source {self._name!r} have no column {', '.join(missing)}.")
        rows: DataFrame = frame.select(*map(quoted, self._schema.names))
        return rows

    def acknowledge(self, slice: Slice) -> None:
        """Nothing to acknowledge."""


class CapturingSink(SinkBackend):
    """A sink that keeps what was committed in a folder, for the test to look at."""

    def __init__(self, name: str, folder: str) -> None:
        self._name = name
        self._folder = folder

    @property
    def kind(self) -> str:
        return "captured"

    @property
    def target(self) -> str:
        return f"captured:{self._folder}/{self._name}"

    def check(self, schema: pa.Schema) -> None:
        """Any columns will do."""

    def start(self, task: TaskScope) -> _CapturingTransaction:
        return _CapturingTransaction(task, Path(self._folder))

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            staged = Path(handle.payload["path"])
            if staged.exists():
                staged.rename(self._committed(epoch) / staged.name)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            Path(handle.payload["path"]).unlink(missing_ok=True)

    def recover(self, epoch: EpochScope) -> None:
        """Nobody else writes to the folder."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {handle.payload["path"] for handle in keep}
        lost = [path for path in Path(self._folder).glob(f"{self._name}-{epoch.epoch}-*") if str(path) not in kept]
        for path in lost:
            path.unlink()
        return len(lost)

    def rows(self, epoch: EpochScope, schema: pa.Schema) -> pa.Table:
        """What the sink shows of an epoch."""
        tables = [pq.read_table(path) for path in sorted(self._committed(epoch).iterdir())]
        return pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")

    def _committed(self, epoch: EpochScope) -> Path:
        folder = Path(self._folder) / "committed" / self._name / str(epoch.epoch)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class _CapturingTransaction(SinkTransaction):
    def __init__(self, task: TaskScope, folder: Path) -> None:
        self._task = task
        self._path = folder / f"{task.owner}-{task.epoch.epoch}-{task.subtask}-{uuid4().hex}.parquet"
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def pre_commit(self) -> Handle:
        rows = sum(batch.num_rows for batch in self._batches)
        if rows:
            pq.write_table(pa.Table.from_batches(self._batches), self._path)
        return Handle(
            owner=self._task.owner, subtask=self._task.subtask, rows=rows, bytes=0, payload={"path": str(self._path)}
        )

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
