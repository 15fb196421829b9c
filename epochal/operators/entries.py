"""``entry``: the source of an application's calls, and their streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.inbox import NO_INBOX, CallBatch, Inbox
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.declarations.entry import ARGUMENTS, CALL_SCHEMA, ENTRIES, REQUEST_ID, SEQUENCE, Entry
from epochal.errors import InvalidInput
from epochal.state.json_form import from_json
from epochal.state.table import Column
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARTITION_CALLS = 10_000


class EntrySource(Source):
    """The calls in an application's inbox, of all of its entries, in the order of their numbers.

    A position is the number of the last call that was taken. The engine gives it the inbox (:meth:`connect`); without
    one there are no calls, and never will be.

    ``entries``: those whose calls Spark is to know the arguments of.
    """

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._calls = tuple(map(CallsOf, entries))
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

        return from_arrow_schema(self._known)

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
        batches = self._parsed(self.table(slice)).to_batches(_PARTITION_CALLS)  # each is a partition
        return spark.createDataFrame(pa.Table.from_batches(batches, self._known), self.schema(spark))

    def table(self, slice: Slice) -> pa.Table:
        """The calls of a slice, without Spark, in the columns of ``CALL_SCHEMA``."""
        return calls_table(self._inbox.read(int(slice.start["through"]), int(slice.end["through"])))

    @property
    def _known(self) -> pa.Schema:
        """The columns of :meth:`read`: arguments are parsed once, here, by the rules of the service that took them."""
        own = [field for field in CALL_SCHEMA if field.name != ARGUMENTS]
        return pa.schema([*own, *(field for calls in self._calls for field in calls.carried)])

    def _parsed(self, rows: pa.Table) -> pa.Table:
        columns = [rows[field.name] for field in CALL_SCHEMA if field.name != ARGUMENTS]
        for calls in self._calls:
            mine = pc.equal(rows["entry"], calls.entry.name).combine_chunks()
            number = np.cumsum(np.asarray(mine)) - 1
            places = pa.array(number, mask=~np.asarray(mine))
            columns += [each.take(places) for each in calls.arguments(rows[ARGUMENTS].filter(mine))]
        return pa.Table.from_arrays(columns, schema=self._known)

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

    Arguments were checked before they came. One that a later version of the entry has added is null; so is one that was
    of another type then, where it does not fit.
    """

    entry: Entry

    @property
    def carried(self) -> pa.Schema:
        """The columns in which the source has the arguments: of no other entry, and null in all other calls."""
        return pa.schema([column.to_arrow().with_name(self._carried(column)) for column in self.entry.arguments])

    def _carried(self, argument: Column) -> str:
        return f"{self.entry.name}.{argument.name}"

    def __call__(self, frame: DataFrame) -> DataFrame:
        arguments = (f"{quoted(self._carried(each))} AS {quoted(each.name)}" for each in self.entry.arguments)
        return frame.where(f"entry = '{self.entry.name}'").selectExpr(REQUEST_ID.name, SEQUENCE.name, *arguments)

    def table(self, rows: pa.Table) -> pa.Table:
        """Of rows in Arrow, in the columns of ``CALL_SCHEMA``."""
        calls = rows.filter(pc.equal(rows["entry"], self.entry.name))
        own = [calls[REQUEST_ID.name], calls[SEQUENCE.name]]
        return pa.Table.from_arrays([*own, *self.arguments(calls[ARGUMENTS])], schema=self.entry.rows)

    def arguments(self, texts: pa.ChunkedArray) -> list[pa.Array]:
        """The values of each argument, from calls' JSON texts."""
        if not self.entry.arguments:
            return []
        found = orjson.loads(f"[{','.join(texts.to_pylist())}]")
        return [
            pa.array(_fitting([each.get(column.name) for each in found], column), column.to_arrow().type)
            for column in self.entry.arguments
        ]


def _fitting(values: Sequence[Any], column: Column) -> list[Any]:
    """The Python values of JSON forms; ``None`` for null, and for what is no value of the column's type."""
    if column.type == "string":
        return [value if type(value) is str else None for value in values]
    return [_fit(value, column) for value in values]


def _fit(value: Any, column: Column) -> Any:
    try:
        return from_json(value, column)
    except InvalidInput:
        return None
