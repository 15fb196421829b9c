"""``entry``: the source of an application's calls, and their streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.inbox import NO_INBOX, CallBatch, Inbox
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.declarations.entries import CALL_SCHEMA, ENTRIES, REQUEST_ID, SEQUENCE, Entry
from epochal.state.json_form import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class EntrySource(Source):
    """The calls in an application's inbox, of all of its entries, in the order of their numbers.

    A position is the number of the last call that was taken. The engine gives it the inbox (:meth:`connect`); without
    one there are no calls, and never will be.
    """

    def __init__(self) -> None:
        self._inbox: Inbox = NO_INBOX
        self._through = 0
        self._bound: int | None = None

    def connect(self, inbox: Inbox) -> None:
        """Before ``restore``."""
        self._inbox = inbox

    @property
    def kind(self) -> str:
        return ENTRIES

    def schema(self, spark: SparkSession) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(CALL_SCHEMA)

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        position = slices[-1].end if slices else checkpoint
        self._through = self._inbox.taken() if position is None else int(position["through"])
        self._inbox.begin(self._through)

    def checkpoint(self) -> dict[str, Any]:
        return {"through": self._through}

    def limit_to_available(self) -> None:
        self._bound = self._inbox.last()

    def plan(self, limits: SliceLimits) -> Slice | None:
        batches = self._inbox.arrived(self._through, limits.max_records)
        if self._bound is not None:
            batches = [batch.within(self._through, self._bound) for batch in batches]
        rows = sum(len(batch.request_ids) for batch in batches)
        if not rows:
            return None
        last = max(batch.last for batch in batches if batch.request_ids)
        return Slice(start={"through": self._through}, end={"through": last}, rows=rows)

    @property
    def urgent(self) -> bool:
        return self._bound is None and bool(self._inbox.arrived(self._through, 1))

    def accept(self, slice: Slice) -> None:
        self._through = int(slice.end["through"])

    def backlog(self) -> Backlog:
        return Backlog(records=sum(len(batch.request_ids) for batch in self._inbox.arrived(self._through, None)))

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return spark.createDataFrame(self.table(slice))

    def table(self, slice: Slice) -> pa.Table:
        """The rows of :meth:`read`, without Spark."""
        return calls_table(self._inbox.read(int(slice.start["through"]), int(slice.end["through"])))

    def acknowledge(self, slice: Slice) -> None:
        """The inbox keeps calls for as long as a rollback may read them again."""

    @property
    def bounded(self) -> bool:
        """Where nobody can call, what waits for the end of all input need not wait for calls."""
        return self._inbox is NO_INBOX

    @property
    def ended(self) -> bool:
        return self._inbox is NO_INBOX or (self._bound is not None and self._through >= self._bound)


def calls_table(batches: Sequence[CallBatch]) -> pa.Table:
    """Calls as rows."""
    counts = [len(batch.request_ids) for batch in batches]
    entries = pa.array([batch.entry for batch in batches], pa.string())
    numbers = [np.arange(batch.first, batch.last + 1, dtype=np.int64) for batch in batches]
    columns = [
        entries.take(pa.array(np.repeat(np.arange(len(batches)), counts), pa.int64())),
        pa.array([each for batch in batches for each in batch.request_ids], pa.string()),
        pa.array(np.concatenate(numbers) if numbers else [], pa.int64()),
        pa.array([each for batch in batches for each in batch.arguments], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=CALL_SCHEMA)


@dataclass(frozen=True)
class CallsOf:
    """From all calls those of one entry, with their arguments as columns.

    Arguments were checked before they came; one that a later version of the entry has added is null.
    """

    entry: Entry

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        calls = frame.where(F.col("entry") == self.entry.name)
        own = [REQUEST_ID.name, SEQUENCE.name]
        if not self.entry.arguments:
            return calls.select(*own)
        types = from_arrow_schema(pa.schema([column.to_arrow() for column in self.entry.arguments]))
        return calls.select(*own, F.from_json("arguments", types).alias("arguments")).select(*own, "arguments.*")

    def table(self, rows: pa.Table) -> pa.Table:
        """Of rows in Arrow."""
        calls = rows.filter(pc.equal(rows["entry"], self.entry.name))
        found = [json.loads(text) for text in calls["arguments"].to_pylist()]
        arguments = [
            pa.array([from_json(each.get(column.name), column) for each in found], column.to_arrow().type)
            for column in self.entry.arguments
        ]
        own = [calls[REQUEST_ID.name], calls[SEQUENCE.name]]
        return pa.Table.from_arrays([*own, *arguments], schema=self.entry.rows)
