"""``entry``: the source of an application's calls, and their streams. ``answer``: the operator that stores answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.inbox import NO_INBOX, CallBatch, Inbox
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.declarations.entry import (
    ANSWERS,
    ARGUMENTS,
    CALL_SCHEMA,
    ENTRIES,
    REQUEST_ID,
    SEQUENCE,
    Entry,
    answers_table,
)
from epochal.declarations.names import closest, listed
from epochal.errors import InvalidInput, PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input
from epochal.operators.entries.work import _ANSWER, _ANSWERED, _ENTRY, ANSWER_ROWS, AnswersWork
from epochal.state.json_form import from_json
from epochal.state.table import Column
from epochal.state.type_names import quoted, type_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARTITION_CALLS = 10_000


class EntrySource(Source):
    """The calls of all entries in an application's inbox, in the order of their numbers.

    A position is the number of the last call read. The engine connects the inbox (:meth:`connect`); without an inbox
    the source is empty and has ended. ``entries``: the entries whose arguments :meth:`read` returns as columns.
    """

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._calls = tuple(map(EntryCalls, entries))
        self._inbox: Inbox = NO_INBOX
        self._through = 0
        self._bound: int | None = None

    def connect(self, inbox: Inbox) -> None:
        """Set the inbox; call this before ``restore``."""
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
        """The calls of a slice as an Arrow table with the columns ``CALL_SCHEMA``."""
        return calls_table(self._inbox.read(int(slice.start["through"]), int(slice.end["through"])))

    @property
    def _known(self) -> pa.Schema:
        """The columns of :meth:`read`. Arguments are parsed once, by the rules of the service that accepted them."""
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
        """Without effect: the inbox retains calls as long as a rollback may read them again."""

    @property
    def bounded(self) -> bool:
        """Without an inbox there are no calls to wait for before the end of all input."""
        return self._inbox is NO_INBOX

    @property
    def ended(self) -> bool:
        return self._inbox is NO_INBOX or (self._bound is not None and self._through >= self._bound)


def calls_table(batches: Sequence[CallBatch]) -> pa.Table:
    """The calls of these batches as rows with the columns ``CALL_SCHEMA``."""
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
class EntryCalls:
    """The calls of one entry, with their arguments as columns.

    The service has checked the arguments. An argument that a later version of the entry has added is null, as is one
    whose type has changed and whose value does not fit.
    """

    entry: Entry

    @property
    def carried(self) -> pa.Schema:
        """The columns of the source with the arguments of this entry, null in the calls of other entries."""
        return pa.schema([column.to_arrow().with_name(self._carried(column)) for column in self.entry.arguments])

    def _carried(self, argument: Column) -> str:
        return f"{self.entry.name}.{argument.name}"

    def __call__(self, frame: DataFrame) -> DataFrame:
        arguments = (f"{quoted(self._carried(each))} AS {quoted(each.name)}" for each in self.entry.arguments)
        return frame.where(f"entry = '{self.entry.name}'").selectExpr(REQUEST_ID.name, SEQUENCE.name, *arguments)

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table with the columns ``CALL_SCHEMA``."""
        calls = rows.filter(pc.equal(rows["entry"], self.entry.name))
        own = [calls[REQUEST_ID.name], calls[SEQUENCE.name]]
        return pa.Table.from_arrays([*own, *self.arguments(calls[ARGUMENTS])], schema=self.entry.rows)

    def arguments(self, texts: pa.ChunkedArray) -> list[pa.Array]:
        """The values of each argument, parsed from the JSON texts of calls."""
        if not self.entry.arguments:
            return []
        found = orjson.loads(f"[{','.join(texts.to_pylist())}]")
        return [
            pa.array(_fitting([each.get(column.name) for each in found], column), column.to_arrow().type)
            for column in self.entry.arguments
        ]


def _fitting(values: Sequence[Any], column: Column) -> list[Any]:
    """The Python values of JSON values; ``None`` for null and for values that do not fit the column's type."""
    if column.type == "string":
        return [value if type(value) is str else None for value in values]
    return [_fit(value, column) for value in values]


def _fit(value: Any, column: Column) -> Any:
    try:
        return from_json(value, column)
    except InvalidInput:
        return None


@dataclass(frozen=True)
class Taken:
    """Rows that record the calls of ``entries`` as received. Calls of the entries ``answered``, which no stream
    answers, are answered with null."""

    entries: tuple[str, ...]
    answered: frozenset[str]

    def __call__(self, frame: DataFrame) -> DataFrame:
        answered = _among(self.answered)
        return frame.where(_among(self.entries)).selectExpr(
            _ENTRY, REQUEST_ID.name, SEQUENCE.name, f"{answered} AS {_ANSWERED}",
            f"IF({answered}, 'null', NULL) AS value", "CAST(NULL AS STRING) AS error",
        )  # fmt: skip

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        calls = rows.filter(pc.is_in(rows[_ENTRY], pa.array(self.entries, pa.string())))
        answered = pc.is_in(calls[_ENTRY], pa.array(sorted(self.answered), pa.string()))
        value = pc.if_else(answered, pa.scalar("null"), pa.scalar(None, pa.string()))
        error = pa.nulls(calls.num_rows, pa.string())
        columns = [calls[_ENTRY], calls[REQUEST_ID.name], calls[SEQUENCE.name], answered, value, error]
        return pa.Table.from_arrays(columns, schema=ANSWER_ROWS)


def _among(entries: Collection[str]) -> str:
    """The SQL condition that a call is of one of these entries, whose names contain no quotes."""
    return f"{_ENTRY} IN ({', '.join(map(repr, sorted(entries)))})" if entries else "false"


@dataclass(frozen=True)
class Answering:
    """The answers of an entry, from the stream that answers it, stored for ``ttl``. Raises ``PipelineError`` with
    column and fix."""

    entry: str
    ttl: str

    @property
    def kept(self) -> Mapping[str, str]:
        """By entry, the time for which its answers are stored."""
        return {self.entry: self.ttl}

    def __call__(self, frame: DataFrame) -> DataFrame:
        self._check(list(frame.columns), {field.name.casefold(): type_name(field.dataType) for field in frame.schema})
        return answer_frame(frame, f"'{self.entry}'")

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        self._check(rows.column_names, {})
        return answer_table(pa.repeat(pa.scalar(self.entry), rows.num_rows), rows)

    def _check(self, there: list[str], types: dict[str, str]) -> None:
        where, needed = f"answer({self.entry!r})", (REQUEST_ID.name, *_ANSWER.names)
        known = {name.casefold() for name in there}
        for name in needed:
            if name not in known:
                raise PipelineError(
                    f"{where}: the stream has no column {name!r}; it has {listed(there)}. Select 'request_id', 'value' "
                    f"(a string of JSON) and 'error' (a string, null without an error).{closest(name, there)}"
                )
            if types.get(name, "string") != "string":
                raise PipelineError(
                    f"{where}: column {name!r} is {types[name]}, but must be a string"
                    f"{', of JSON: to_json(value) or CAST(value AS STRING)' if name == 'value' else ''}."
                )
        unknown = [name for name in there if name.casefold() not in needed]
        if unknown:
            raise PipelineError(
                f"{where}: the stream has a column {unknown[0]!r}, which answers do not have. Remove it: "
                f"select({', '.join(map(repr, needed))})."
            )


def answer_frame(
    frame: DataFrame,
    entry: str,
    request_id: str = REQUEST_ID.name,
    sequence: str = "CAST(NULL AS BIGINT)",
    value: str = "value",
    error: str = "error",
) -> DataFrame:
    """Rows of answers, with each column from a SQL expression. ``entry``: the entry's name; ``sequence``: the number of
    the call, if a row also records the call."""
    return frame.selectExpr(
        f"{entry} AS {_ENTRY}", f"{request_id} AS {REQUEST_ID.name}", f"{sequence} AS {SEQUENCE.name}",
        f"true AS {_ANSWERED}", f"{value} AS value", f"{error} AS error",
    )  # fmt: skip


def answer_table(entry: pa.Array, rows: pa.Table) -> pa.Table:
    """Like :func:`answer_frame`, for an Arrow table, with its column ``sequence`` if it has one."""
    known = SEQUENCE.name in rows.column_names
    numbers = rows[SEQUENCE.name] if known else pa.nulls(len(rows), pa.int64())
    answered = pa.repeat(pa.scalar(True), len(rows))
    columns = [entry, rows[REQUEST_ID.name], numbers, answered, rows["value"], rows["error"]]
    return pa.Table.from_arrays(columns, schema=ANSWER_ROWS)


@dataclass(frozen=True)
class AnswersOperator(Operator):
    """State tables: ``{entry}_answers`` for each entry. A call stays in it for the time ``kept``, from its arrival or
    its answer, whichever is later.

    One operator stores the answers of all entries: each further operator would add a shuffle and tasks to every epoch.
    """

    kind: ClassVar[str] = "answers"
    kept: tuple[tuple[Entry, str], ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return ANSWERS

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("calls and answers", Distribution.BY_KEY, (REQUEST_ID.name,)),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        tables = {entry.name: answers_table(entry, ttl) for entry, ttl in self.kept}
        output = pa.schema([REQUEST_ID.to_arrow()])
        work = AnswersWork(tables)
        return OperatorPlan(self.name, self.inputs, (REQUEST_ID,), tuple(tables.values()), work, output)

    def details(self) -> dict[str, Any]:
        return {"kept": {entry.name: ttl for entry, ttl in self.kept}}
