"""``drop_duplicates``: of each key the first row, for ever or for a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from epochal.contracts.stream_kind import only_append
from epochal.declarations.intervals import written_interval
from epochal.declarations.schemas import carried_schema, key_columns
from epochal.errors import PipelineError
from epochal.operators.contract import Distribution, Input, Operator, OperatorPlan
from epochal.operators.declared import nullable, spelled
from epochal.state.column_bytes import Mask
from epochal.state.expiry import Expiry, microseconds
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.calls import KEY_GROUP, MARK, SUBTASK
from epochal.tasks.first_rows import NEVER, Integers, in_order, kept, numbered_keys
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys, gathered
from epochal.tasks.values import column_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEEN: Final = Column(name="seen", type="boolean")
FIRST_AT: Final = Column(name="first_at", type="timestamp")
_TAKES: Final = only_append("Drop duplicates before the rows are aggregated.")


@dataclass(frozen=True)
class DropDuplicatesOperator(Operator):
    """State table: the operator's name. It says ``seen`` of every key, or ``first_at``, when the row that was kept
    happened, until ``within`` (microseconds) after that. ``event_time``: the input's column, if it has one."""

    kind: ClassVar[str] = "drop_duplicates"
    name: str
    keys: tuple[str, ...]
    event_time: str | None
    within: int | None
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, _TAKES, event_time=self.event_time),)

    @property
    def event_time_of_output(self) -> str | None:
        return self.event_time

    def late_before(self, input: int, late: int) -> int | None:
        """What a late row may be a duplicate of has expired."""
        return None if self.within is None else late

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        key = key_columns(self.name, self.keys, frames[0].schema)
        value = SEEN if self.within is None else FIRST_AT
        if value.name in {column.name.casefold() for column in key}:
            raise PipelineError(
                f"Operator {self.name!r}: its state has a column {value.name!r}. Rename the key column."
            )
        expires = None if self.within is None else Expiry(clock="event", column=value.name, after=self.within)
        table = StateTable(
            id=self.name,
            operator=self.name,
            kind=StateKind.VALUE,
            key=key,
            value=(value,),
            expires=expires,
            queryable=self.queryable,
        )
        output = nullable(carried_schema(frames[0].schema))
        columns = frames[0].columns
        keys, time = spelled(columns, self.keys), spelled(columns, (self.event_time or "",))
        work = DropDuplicatesWork(table, keys, time[0] if time else None, self.within)
        return OperatorPlan(self.name, self.inputs, key, (table,), work, output)

    def state_depends_on(self, input: int) -> frozenset[str] | None:
        return frozenset()

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys), "within": None if self.within is None else written_interval(self.within)}

    def warnings(self) -> Iterator[str]:
        if self.within is None:
            yield (
                f"Operator {self.name!r}: drop_duplicates() without within= keeps every key for ever: its state "
                "grows. Say how far apart duplicates may be: with_watermark(..).drop_duplicates(.., within='1 day')."
            )


@dataclass(frozen=True)
class DropDuplicatesWork:
    """Output: of each key the first row, by event time where there is one and then by all columns."""

    table: StateTable
    keys: tuple[str, ...]
    """As the input spells them, as is ``event_time``."""
    event_time: str | None
    within: int | None
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        if not slice.num_rows:
            return
        codes, of_key = numbered_keys(slice.select(self.keys))
        unique = slice if len(of_key) == len(codes) else slice.take(pa.array(of_key))
        keys = SliceKeys.of(subtask, self.table, unique, self.keys)
        found, values = keys.stored()
        if self.within is None:
            first, changed = self._new(slice, codes, ~found), ~found
            value = pa.repeat(pa.scalar(True), int(changed.sum()))
        else:
            first, last = self._apart(slice, codes, self._until(found, values), self.within)
            changed = last != NEVER
            value = pa.array(last[changed], pa.int64()).cast(self.table.value_schema.field(0).type)
        if changed.any():
            subtask.transaction.stage(self.table.id, keys.filter(pa.array(changed)).changes("put", [value]))
        yield from slice.take(pa.array(first)).select(subtask.output.names).cast(subtask.output).to_batches()

    def _new(self, slice: pa.Table, codes: Integers, new: Mask) -> Integers:
        """The positions of the first rows of the keys that are ``new``."""
        candidates = np.flatnonzero(new[codes])
        if len(candidates) == int(new.sum()):
            return candidates
        candidates, chosen = self._sorted(slice, codes, candidates)
        return candidates[np.r_[True, chosen[1:] != chosen[:-1]]]

    def _apart(self, slice: pa.Table, codes: Integers, until: Integers, within: int) -> tuple[Integers, Integers]:
        """The positions of the rows that are kept, and of each key the time of the last of them or ``NEVER``."""
        times = np.asarray(microseconds(column_of(slice, str(self.event_time))), np.int64)
        candidates = np.flatnonzero(times >= until[codes])
        last = np.full(len(until), NEVER)
        came = np.zeros(len(until), np.bool_)
        came[codes[candidates]] = True
        if int(came.sum()) < len(candidates):
            candidates, chosen = self._sorted(slice, codes, candidates)
            candidates = candidates[kept(chosen, times[candidates], until, within)]
        last[codes[candidates]] = times[candidates]  # of several of a key the last one
        return candidates, last

    def _sorted(self, slice: pa.Table, codes: Integers, candidates: Integers) -> tuple[Integers, Integers]:
        """These rows by key and then by their own order, and their keys' numbers."""
        rows = slice.take(pa.array(candidates)).drop_columns([KEY_GROUP, MARK, SUBTASK])
        by_time = () if self.event_time is None else (self.event_time,)
        ordered = candidates[in_order(rows, codes[candidates], by_time)]
        return ordered, codes[ordered]

    def _until(self, found: Mask, values: pa.Table) -> Integers:
        """Of each key the time until which its rows are duplicates."""
        first_at = microseconds(column_of(values, FIRST_AT.name)).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(found, first_at + (self.within or 0), NEVER)
