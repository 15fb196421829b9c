"""Distribution of rows to subtasks without Spark: :mod:`epochal.operators.distribution` on Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.distribution import Distribution
from epochal.state.keygroups import Groups, key_groups, subtask_of
from epochal.state.table import Column
from epochal.tasks.subtask_rows import INPUT, KEY_GROUP, MARK, SUBTASK, TO, carried_name


@dataclass(frozen=True)
class LocalInput:
    """One input of an operator: all of its rows, or those in which the boolean column ``where`` is true.

    ``order_by``: the columns that order the rows of a subtask or of a key.
    """

    distribution: Distribution = Distribution.BY_KEY
    order_by: tuple[str, ...] = ()
    where: str | None = None


@dataclass(frozen=True)
class LocalShuffle:
    """The rows of all inputs at their subtasks, with marks and control columns, in the order that a task needs.

    If there are several inputs, the later ones come first in each subtask.
    """

    inputs: tuple[LocalInput, ...]
    key: tuple[Column, ...]
    parallelism: int
    max_parallelism: int

    def of(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Shuffle the rows. ``tables``: the rows of each input."""
        numbers = pa.array(range(self.parallelism), pa.int32())
        marks = pa.table({MARK: numbers, SUBTASK: numbers})
        inputs = zip(self.inputs, tables, strict=True)
        parts = [self._arranged(number, input, rows) for number, (input, rows) in enumerate(inputs)]
        both = pa.concat_tables([*parts, marks], promote_options="default")
        order = [(SUBTASK, "ascending"), (MARK, "ascending")]
        order += [(INPUT, "descending")] * (len(self.inputs) > 1)
        order += [(KEY_GROUP, "ascending")]
        order += [(name, "ascending") for name in self._order(tables)]
        return both.sort_by(order)

    def _arranged(self, number: int, input: LocalInput, rows: pa.Table) -> pa.Table:
        rows = rows if input.where is None else rows.filter(rows[input.where])
        groups = pa.nulls(rows.num_rows, pa.int32())
        match input.distribution:
            case Distribution.BY_KEY:
                key = pa.schema([column.to_arrow() for column in self.key])
                owned = key_groups(rows.select(key.names).cast(key), key, self.max_parallelism)
                groups, subtasks = pa.array(owned), subtask_of(owned, self.parallelism)
            case Distribution.TO_ANY:
                rows = rows.sort_by([(name, "ascending") for name in rows.column_names])
                subtasks = (np.arange(rows.num_rows) % self.parallelism).astype(np.int32)
            case Distribution.TO_ALL:
                subtasks = np.repeat(np.arange(self.parallelism, dtype=np.int32), rows.num_rows)
                rows = rows.take(pa.array(np.tile(np.arange(rows.num_rows), self.parallelism)))
                groups = pa.nulls(rows.num_rows, pa.int32())
            case Distribution.BY_GROUP:
                rows, subtasks = self._by_group(rows)
                groups = pc.if_else(pc.less(rows[TO], 0), None, rows[TO])
        columns = {
            MARK: pa.nulls(rows.num_rows, pa.int32()),
            SUBTASK: pa.array(subtasks, pa.int32()),
            KEY_GROUP: groups,
        }
        if len(self.inputs) > 1:
            columns[INPUT] = pa.repeat(pa.scalar(number, pa.int8()), rows.num_rows)
        return pa.table({**columns, **{self._name(number, name): rows[name] for name in rows.column_names}})

    def _by_group(self, rows: pa.Table) -> tuple[pa.Table, Groups]:
        to = rows[TO].to_numpy()
        counts = np.where(to < 0, self.parallelism, 1)
        taken = np.repeat(np.arange(len(to)), counts)
        every = np.arange(len(taken)) - np.repeat(np.cumsum(counts) - counts, counts)
        owners = np.repeat(to, counts)
        subtasks = np.where(owners < 0, every, subtask_of(owners, self.parallelism)).astype(np.int32)
        return rows.take(pa.array(taken)), subtasks

    def _name(self, number: int, name: str) -> str:
        by_key = self.inputs[number].distribution is Distribution.BY_KEY
        if len(self.inputs) == 1 or (by_key and name in {column.name for column in self.key}):
            return name
        return carried_name(number, name)

    def _order(self, tables: Sequence[pa.Table]) -> Sequence[str]:
        names = [column.name for column in self.key]
        for number, (input, rows) in enumerate(zip(self.inputs, tables, strict=True)):
            names += [self._name(number, name) for name in input.order_by]
            if input.distribution in (Distribution.TO_ANY, Distribution.TO_ALL):
                names += [self._name(number, name) for name in rows.column_names]
        return list(dict.fromkeys(names))
