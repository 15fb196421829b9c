"""``top``: of each key the first rows in an order, kept up to date."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from epochal.contracts.stream_kind import StreamKind, only_append, upsert
from epochal.declarations.names import require_columns
from epochal.declarations.schemas import carried_schema, key_columns
from epochal.declarations.spark_errors import at
from epochal.errors import PipelineError
from epochal.operators.contract import Distribution, Input, Operator, OperatorPlan
from epochal.operators.declared import spelled
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import type_name
from epochal.state.types import check_column
from epochal.tasks.first_rows import Integers, in_order, numbered_keys
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys, delta_rows, gathered
from epochal.tasks.values import column_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RANK: Final = Column(name="rank", type="int")
MOST: Final = 1000
TAKES: Final = only_append(
    "Take top() of the rows themselves; of new values of keys it would keep those that have been replaced since."
)


@dataclass(frozen=True)
class TopOperator(Operator):
    """State table: the operator's name, with ``rank`` (1 is the first) as its own key and a row's other columns."""

    kind: ClassVar[str] = "top"
    name: str
    keys: tuple[str, ...]
    count: int
    by: tuple[str, ...]
    descending: bool
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, TAKES),)

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        return upsert((*self.keys, RANK.name))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        value = row_columns(self.name, frame, self.keys, (RANK.name,))
        by, keys = ordered_by(self.name, self.by, self.keys, value), spelled(frame.columns, self.keys)
        table = StateTable(
            id=self.name,
            operator=self.name,
            kind=StateKind.MAP,
            key=key,
            sub_key=(RANK,),
            value=value,
            ranked=ranked(self.count, by, self.descending),
            queryable=self.queryable,
        )
        output = pa.schema([column.to_arrow() for column in (*key, RANK, *value)])
        work = TopWork(table, keys, self.count, by, self.descending)
        return OperatorPlan(self.name, self.inputs, key, (table,), work, output)

    @property
    def grows(self) -> str | None:
        return "keeps rows of every key that came. Where keys have no end, say top(.., within=window), which ends."

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys), **ranked(self.count, self.by, self.descending)}


def ranked(count: int, by: Sequence[str], descending: bool) -> dict[str, Any]:
    """Which rows are kept, as JSON."""
    return {"count": count, "by": list(by), "order": "descending" if descending else "ascending"}


def row_columns(
    operator: str, frame: DataFrame, keys: Sequence[str], own: Collection[str], without: Collection[str] = ()
) -> tuple[Column, ...]:
    """What is kept of a row: its columns but for the key's and those ``without``. ``own``: the names that top() gives.

    Raises ``PipelineError``, ``SchemaError`` naming operator, column and fix.
    """
    with at(f"Operator {operator!r}"):
        for name in frame.columns:
            if name.casefold() in own and name.casefold() not in without:
                raise PipelineError(
                    f"its input has a column {name!r}, as top() gives one of its own. Rename or drop it."
                )
        carried_schema(frame.schema)
    left = {name.casefold() for name in (*keys, *without)}
    fields = (field for field in frame.schema if field.name.casefold() not in left)
    columns = tuple(Column(name=field.name, type=type_name(field.dataType)) for field in fields)
    for column in columns:
        check_column(operator, column.name, column.type, key=False)
    return columns


def ordered_by(operator: str, by: Sequence[str], keys: Sequence[str], kept: Sequence[Column]) -> tuple[str, ...]:
    """The columns that rows are ranked by, as the input spells them. ``kept``: those of :func:`row_columns`.

    Raises ``PipelineError`` naming operator, column and fix.
    """
    named = {column.name.casefold(): column for column in kept}
    with at(f"Operator {operator!r}"):
        require_columns(tuple(by), [*keys, *(column.name for column in kept)])
        for name in by:
            if name.casefold() not in named:
                raise PipelineError(f"top() is by {name!r}, a column of the key: all rows of a key have the same.")
            if named[name.casefold()].type.startswith(("array<", "map<", "struct<", "variant")):
                raise PipelineError(f"rows cannot be ordered by {name!r}, a nested column. Order by a field of it.")
    return tuple(named[name.casefold()].name for name in by)


@dataclass(frozen=True)
class TopWork:
    """Output: of each key the ranks that another row has now, each with its row. A rank never goes without a row again,
    so that these are the new values of (key, rank)."""

    table: StateTable
    keys: tuple[str, ...]
    """As the input spells them, as is ``by``."""
    count: int
    by: tuple[str, ...]
    descending: bool
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        if not slice.num_rows:
            return
        codes, of_key = numbered_keys(slice.select(self.keys))
        unique, values = slice.take(pa.array(of_key)), self.table.value_schema
        keys = SliceKeys.of(subtask, self.table, unique, self.keys)
        before = keys.entries()
        both = pa.concat_tables([before.rows.select(values.names), slice.select(values.names).cast(values)])
        had = np.concatenate([column_of(before.rows, RANK.name).to_numpy(), np.zeros(len(codes), np.int32)])
        of_key = np.concatenate([before.owner, codes])
        # In the order of the rows, and of equal rows those of the state first: so these keep their ranks.
        ordered = in_order(both.combine_chunks(), of_key, self.by, self.descending)
        of_key, had = of_key[ordered], had[ordered]
        ranks = _ranks(of_key)
        changed = np.flatnonzero((ranks <= self.count) & (ranks != had))
        if not len(changed):
            return
        of_key = pa.array(of_key[changed])
        rank = pa.array(ranks[changed], pa.int32())
        columns = [*keys.rows.take(of_key).columns, rank, *both.take(pa.array(ordered[changed])).columns]
        subtask.transaction.stage(self.table.id, delta_rows(self.table, keys.groups.take(of_key), "put", columns))
        yield from pa.Table.from_arrays(columns, schema=subtask.output).to_batches()


def _ranks(of_key: Integers) -> Integers:
    """Of rows sorted by key the place of each among those of its key, from 1."""
    starts = np.flatnonzero(np.r_[True, of_key[1:] != of_key[:-1]])
    ranks: Integers = np.arange(1, len(of_key) + 1) - np.repeat(starts, np.diff(np.r_[starts, len(of_key)]))
    return ranks
