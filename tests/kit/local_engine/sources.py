"""Sources and sinks of the engine without Spark, with rows in memory and in handles."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.source import PARTITION, Slice, SliceLimits, Source


class NotForSpark:
    """The Spark half of a source, which is not supported."""

    def schema(self, spark: Any) -> Any:
        raise NotImplementedError("no rows of this source go through Spark")

    def read(self, spark: Any, slice: Slice) -> Any:
        raise NotImplementedError("no rows of this source go through Spark")


class LogSource(NotForSpark, Source):
    """A log in memory. A ``position`` is the number of preceding entries; slices are contiguous."""

    def __init__(self) -> None:
        self._position = 0

    @property
    @abstractmethod
    def length(self) -> int:
        """The current number of entries of the log."""

    @property
    def ended(self) -> bool:
        return self._position >= self.length

    def limit_to_available(self) -> None:
        """All input is available."""

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = checkpoint["position"] if checkpoint else 0
        for slice in slices:
            if slice.start["position"] != self._position:
                raise AssertionError(f"slices are not consecutive: {slice} after {self._position}")
            self._position = slice.end["position"]

    def checkpoint(self) -> dict[str, Any]:
        return {"position": self._position}

    def up_to(self, end: int, rows: int, detail: dict[str, Any] | None = None) -> Slice:
        """Return the slice from the current position up to, but excluding, ``end``."""
        return Slice(start={"position": self._position}, end={"position": end}, detail=detail or {}, rows=rows)

    def accept(self, slice: Slice) -> None:
        self._position = slice.end["position"]

    def acknowledge(self, slice: Slice) -> None:
        """Nothing to acknowledge."""


@dataclass
class LocalRows:
    """The rows of a source, which outlive attempts: one table per slice.

    ``partitions``: its partitions, empty for an unpartitioned source. ``bounded``: no more rows follow.
    ``punctuated``: each slice ends with a punctuation.
    """

    schema: pa.Schema
    partitions: tuple[str, ...] = ()
    slices: list[pa.Table] = field(default_factory=list)
    bounded: bool = False
    punctuated: bool = False
    awaited: bool = False
    """More rows can follow at any time: the source has not ended when all rows are read."""

    def give(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set the rows of the next slice. In a partitioned source, each row names its partition in
        ``source.PARTITION``."""
        self.slices.append(pa.Table.from_pylist(list(rows), self.columns))

    @property
    def columns(self) -> pa.Schema:
        return self.schema.append(pa.field(PARTITION, pa.string())) if self.partitions else self.schema


class LocalSource(LogSource):
    """Reads one slice of :class:`LocalRows` per epoch."""

    kind = "local"

    def __init__(self, rows: LocalRows) -> None:
        super().__init__()
        self._rows = rows

    def table(self, slices: Sequence[Slice]) -> pa.Table:
        """Return the rows of slices, with their partitions if the source has them."""
        taken = [self._rows.slices[slice.start["position"]] for slice in slices]
        return pa.concat_tables([self._rows.columns.empty_table(), *taken])

    @property
    def partitioned(self) -> bool:
        return bool(self._rows.partitions)

    def partitions(self) -> frozenset[str]:
        return frozenset(self._rows.partitions)

    def partitions_of(self, slice: Slice) -> frozenset[str]:
        return frozenset(slice.detail["partitions"])

    @property
    def bounded(self) -> bool:
        return self._rows.bounded

    @property
    def punctuated(self) -> bool:
        return self._rows.punctuated

    @property
    def ended(self) -> bool:
        return super().ended and not self._rows.awaited

    @property
    def length(self) -> int:
        return len(self._rows.slices)

    def plan(self, limits: SliceLimits) -> Slice | None:
        if super().ended:
            return None
        rows = self._rows.slices[self._position]
        seen = sorted(set(rows[PARTITION].to_pylist())) if self._rows.partitions else []
        return self.up_to(self._position + 1, rows.num_rows, {"partitions": seen})


class HandleSink(SinkBackend):
    """A sink whose rows are in its handles, and so in the manifests of decided epochs; commits have no effect."""

    kind = "handles"

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def target(self) -> str:
        return f"handles:{self._name}"

    def check(self, schema: pa.Schema) -> None:
        """Accept any columns."""

    def start(self, task: TaskScope) -> SinkTransaction:
        return _HandleTransaction(task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Nothing to commit: the manifest contains the rows."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Nothing to abort: no manifest contains the rows."""

    def recover(self, epoch: EpochScope) -> None:
        """The sink has no other writers."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


def rows_of(handles: Sequence[Handle]) -> list[dict[str, Any]]:
    """Return the rows in handles of :class:`HandleSink`."""
    tables = [pa.ipc.open_stream(base64.b64decode(each.payload["rows"])).read_all() for each in handles if each.rows]
    return [row for table in tables for row in table.to_pylist()]


@dataclass
class _HandleTransaction(SinkTransaction):
    task: TaskScope
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def pre_commit(self) -> Handle:
        rows, encoded = sum(batch.num_rows for batch in self.batches), ""
        if rows:
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_stream(buffer, self.batches[0].schema) as stream:
                for batch in self.batches:
                    stream.write_batch(batch)
            encoded = base64.b64encode(buffer.getvalue()).decode()
        return Handle(
            owner=self.task.owner, subtask=self.task.subtask, rows=rows, bytes=len(encoded), payload={"rows": encoded}
        )

    def discard(self) -> None:
        """Nothing to discard: the rows are only in memory."""
