"""How rows come to subtasks, and how every subtask runs in every epoch and knows who it is.

One control row per subtask, its *mark*, rides with the rows (docs/architecture.md, "Which subtask am I"). All frames
that reach an operator's task have, beside their own columns, ``_mark`` int (in real rows null or :data:`UNMARKED`),
``_subtask`` int and ``_kg`` int (null in marks, and in rows that are not distributed by key). The rows of several
inputs are united and shuffled once: ``_input`` tinyint says which one a row is of, the operator's key columns stand
under the key's names, and each input's other columns under names of its own
(:func:`epochal.tasks.subtask_rows.carried_name`), null in other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.contracts.stream_kind import ALL_BUT_CHANGES, Accepted
from epochal.state.keygroups import hash_key, key_group_expression
from epochal.state.table import Column
from epochal.state.type_names import quoted
from epochal.tasks.subtask_rows import INPUT, KEY_GROUP, MARK, SUBTASK, TO, UNMARKED, carried_name

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_MARK_SCHEMA = pa.schema([(MARK, pa.int32())])


class Distribution(StrEnum):
    """Which subtasks get a row of an input."""

    BY_KEY = "by key"
    """The subtask that owns the key's key group."""
    TO_ANY = "to any"
    """One subtask, in turn, whatever the row is: the same one in every retry, and as many rows to each."""
    TO_ALL = "to all"
    """Every subtask."""
    BY_GROUP = "by key group"
    """The subtask that owns the key group in column ``_to``; every subtask, where it is negative."""


@dataclass(frozen=True)
class Input:
    """One input of an operator. ``keys``: the columns that its rows are distributed by, in the key's order.

    ``takes``: the kinds of stream that it may read. By default all that are rows: what new values of keys are to an
    author's own function is the author's to say.
    """

    name: str
    distribution: Distribution
    keys: tuple[str, ...] = ()
    takes: Accepted = ALL_BUT_CHANGES
    order_by: tuple[str, ...] = ()
    """The columns that the rows of a subtask are in the order of, or those of a key."""
    event_time: str | None = None
    """The column that says when a row happened, where the operator goes by event time; a timestamp, never null."""


@dataclass(frozen=True)
class Subtasks:
    """The subtasks of an attempt's operators. ``marks``: one row each, column ``_mark``; for any number of epochs."""

    parallelism: int
    max_parallelism: int
    marks: DataFrame
    _control: dict[tuple[str, ...], list[SparkColumn]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, spark: SparkSession, parallelism: int, max_parallelism: int) -> Subtasks:
        marks = spark.range(0, parallelism, 1, 1).selectExpr(
            f"element_at({_values(parallelism)}, int(id + 1)) AS {MARK}"
        )
        return cls(parallelism, max_parallelism, marks)

    @cached_property
    def called(self) -> DataFrame:
        """The marks with the subtask that each is of, ``_subtask``."""
        return self.marks.selectExpr(MARK, f"int(array_position({_values(self.parallelism)}, {MARK}) - 1) AS {SUBTASK}")

    def control(self, keys: Sequence[str]) -> list[SparkColumn]:
        """Of marked rows ``_kg`` and, as :func:`epochal.state.keygroups.subtask_of` has it, ``_subtask``.

        They compute of ``_mark``, as :func:`with_marks` has it, and the columns ``keys`` alone, so that rows may be
        aggregated by these. Made once for each key, as every column costs calls into the JVM.
        """
        from pyspark.sql import functions as F

        columns = self._control.get(tuple(keys))
        if columns is None:
            group = key_group_expression(keys, self.max_parallelism)
            called = f"array_position({_values(self.parallelism)}, {MARK}) - 1"
            columns = [
                F.expr(f"IF({MARK} = {UNMARKED}, int({group}), NULL) AS {KEY_GROUP}"),
                F.expr(f"int(IF({MARK} = {UNMARKED}, {group} % {self.parallelism}, {called})) AS {SUBTASK}"),
            ]
            self._control[tuple(keys)] = columns
        return columns

    @property
    def ride_spark_shuffle(self) -> bool:
        """True when Spark's own hash partitioning of the keys puts every key group on its subtask."""
        return self.max_parallelism % self.parallelism == 0


@cache
def mark_values(parallelism: int) -> tuple[int, ...]:
    """For each subtask an int whose Spark hash falls on it: pmod(hash(value), parallelism) == subtask."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < parallelism:
        found.setdefault(hash_key([candidate], _MARK_SCHEMA) % parallelism, candidate)
        candidate += 1
    return tuple(found[subtask] for subtask in range(parallelism))


def with_marks(frame: DataFrame, subtasks: Subtasks) -> DataFrame:
    """``frame`` with ``_mark`` = :data:`UNMARKED`, united with the marks, which are null in every column of ``frame``.

    Grouped by ``_mark`` and then keys, a row is in the partition that Spark gives to its keys, and a mark in that of
    its subtask. Null in rows would be hashed like this, too; but Spark's fast hash map passes rows by that have a null.
    """
    return frame.selectExpr("*", f"{UNMARKED} AS {MARK}").unionByName(subtasks.marks, allowMissingColumns=True)


def with_control(frame: DataFrame, keys: Sequence[str], subtasks: Subtasks) -> DataFrame:
    """A marked frame with the columns of :meth:`Subtasks.control`."""
    return frame.select("*", *subtasks.control(keys))


def united(
    frames: Sequence[DataFrame], inputs: Sequence[Input], key: Sequence[Column], subtasks: Subtasks
) -> DataFrame:
    """The rows of all inputs and the marks, with control columns. A single input keeps the names of its columns."""
    several = len(inputs) > 1
    arranged = [
        _tagged(_arranged(frame, input, subtasks), number, input, key) if several else _arranged(frame, input, subtasks)
        for number, (frame, input) in enumerate(zip(frames, inputs, strict=True))
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), [*arranged, subtasks.called])


def _arranged(frame: DataFrame, input: Input, subtasks: Subtasks) -> DataFrame:
    """An input's rows with ``_kg`` and ``_subtask``."""
    parallelism = subtasks.parallelism
    match input.distribution:
        case Distribution.BY_KEY:
            group = key_group_expression(input.keys, subtasks.max_parallelism)
            return frame.selectExpr("*", f"int({group}) AS {KEY_GROUP}", f"int({group} % {parallelism}) AS {SUBTASK}")
        case Distribution.TO_ANY:
            # A retried task may meet its partition's rows in another order: in turn means in an order of their own.
            in_order = frame.sortWithinPartitions(*in_every_column(frame))
            turn = f"(monotonically_increasing_id() + spark_partition_id()) % {parallelism}"
            return in_order.selectExpr("*", f"CAST(NULL AS INT) AS {KEY_GROUP}", f"int({turn}) AS {SUBTASK}")
        case Distribution.TO_ALL:
            every = f"explode(sequence(0, {parallelism - 1})) AS {SUBTASK}"
            return frame.selectExpr("*", f"CAST(NULL AS INT) AS {KEY_GROUP}", every)
        case Distribution.BY_GROUP:
            them = f"IF({TO} < 0, sequence(0, {parallelism - 1}), array(int({TO} % {parallelism})))"
            group = f"IF({TO} < 0, CAST(NULL AS INT), {TO}) AS {KEY_GROUP}"
            return frame.selectExpr("*", group, f"explode({them}) AS {SUBTASK}")


def _tagged(frame: DataFrame, number: int, input: Input, key: Sequence[Column]) -> DataFrame:
    """An arranged input as one of several: which one it is, and its columns under names of their own."""
    keyed = dict(zip((name.casefold() for name in input.keys), key, strict=False))
    columns = [f"CAST({number} AS TINYINT) AS {INPUT}", KEY_GROUP, SUBTASK]
    for name in frame.columns:
        if name.casefold() in keyed:
            column = keyed[name.casefold()]
            columns.append(f"CAST({quoted(name)} AS {column.type}) AS {quoted(column.name)}")
        elif name not in (KEY_GROUP, SUBTASK):
            columns.append(f"{quoted(name)} AS {quoted(carried_name(number, name))}")
    return frame.selectExpr(*columns)


def in_every_column(
    frame: DataFrame, first: Sequence[str] = (), named: Callable[[str], str] = str
) -> list[SparkColumn]:
    """What to sort ``frame`` by so that its order is that of its rows alone: columns ``first``, then all others.

    ``named``: how its columns are called where they are sorted.
    """
    leading = {name.casefold() for name in first}
    others = [field for field in frame.schema if field.name.casefold() not in leading]
    rest = (_sortable(_column(named(field.name)), field.dataType) for field in others)
    return [*(_column(named(name)) for name in first), *rest]


def _column(name: str) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.col(quoted(name))


def _sortable(column: SparkColumn, type: DataType) -> SparkColumn:
    """``column`` as something that Spark can sort by: maps as their entries in order, variants as JSON."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if not _holds(type, (MapType, VariantType)):
        return column
    match type:
        case MapType(keyType=of_key, valueType=of_value):
            entries = F.transform(
                F.map_entries(column),
                lambda entry: F.struct(
                    _sortable(entry["key"], of_key).alias("key"), _sortable(entry["value"], of_value).alias("value")
                ),
            )
            return F.sort_array(entries)
        case ArrayType(elementType=of_element):
            return F.transform(column, lambda element: _sortable(element, of_element))
        case StructType(fields=fields):
            return F.struct(*(_sortable(column[field.name], field.dataType).alias(field.name) for field in fields))
        case _:
            return F.to_json(column)


def _holds(type: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    match type:
        case ArrayType(elementType=inner):
            return isinstance(type, kinds) or _holds(inner, kinds)
        case MapType(keyType=of_key, valueType=of_value):
            return isinstance(type, kinds) or _holds(of_key, kinds) or _holds(of_value, kinds)
        case StructType(fields=fields):
            return any(_holds(field.dataType, kinds) for field in fields)
        case _:
            return isinstance(type, kinds)


def placed(frame: DataFrame, subtasks: Subtasks) -> DataFrame:
    """Each row in the partition of its ``_subtask``."""
    from pyspark.sql import functions as F

    return frame.repartitionById(subtasks.parallelism, F.col(SUBTASK))


def sorted_by_subtask(frame: DataFrame, *columns: str | SparkColumn) -> DataFrame:
    """The rows of each partition subtask by subtask, first the mark, then the rows in the order of ``columns``."""
    from pyspark.sql import functions as F

    return frame.sortWithinPartitions(SUBTASK, F.expr(MARK).desc_nulls_last(), *columns)


def _values(parallelism: int) -> str:
    return f"array({', '.join(map(str, mark_values(parallelism)))})"
