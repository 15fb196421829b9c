"""Distribution of rows to subtasks, and the marks that make every subtask run in every epoch.

One control row per subtask, its *mark*, is shuffled with the rows (docs/architecture.md, "Subtasks and marks"). In
addition to their own columns, all frames for an operator's task have ``_mark`` int (in data rows null or
:data:`UNMARKED`), ``_subtask`` int and ``_kg`` int (null in marks, and in rows that are not distributed by key). The
rows of several inputs are united and shuffled once: ``_input`` tinyint is the number of a row's input, the operator's
key columns have the key's names, and the other columns of each input have names of their own
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
    from pyspark.sql.types import DataType, StructField

SLOT = "_slot"
"""Number of the slot of a row's subtask (:mod:`epochal.engine.placement`)."""
_MARK_SCHEMA = pa.schema([(MARK, pa.int32())])


class Distribution(StrEnum):
    """The subtasks that receive a row of an input."""

    BY_KEY = "by key"
    """The subtask that owns the key's key group."""
    TO_ANY = "to any"
    """One subtask, round-robin: the same one in every retry, and the same number of rows to each."""
    TO_ALL = "to all"
    """Every subtask."""
    BY_GROUP = "by key group"
    """The subtask that owns the key group in column ``_to``; every subtask, if it is negative."""


@dataclass(frozen=True)
class Input:
    """One input of an operator. ``keys``: the columns that its rows are distributed by, in the key's order.

    ``takes``: the kinds of stream that it accepts. By default all kinds except changes: an author's own function
    decides the meaning of new values of keys.
    """

    name: str
    distribution: Distribution
    keys: tuple[str, ...] = ()
    takes: Accepted = ALL_BUT_CHANGES
    order_by: tuple[str, ...] = ()
    """The columns that the rows of a subtask, or of a key, are sorted by."""
    event_time: str | None = None
    """The event-time column, if the operator uses event time; a timestamp without nulls."""


@dataclass(frozen=True)
class PlacedSlots:
    """The slots of a placement (:mod:`epochal.engine.placement`): ``frame`` has one row per slot, ``_slot`` int, each
    in the partition of this number and cached. ``of``: the slot of each subtask."""

    frame: DataFrame
    count: int
    of: tuple[int, ...]


@dataclass(frozen=True)
class Subtasks:
    """The subtasks of operators with this parallelism. ``marks``: one row each, with column ``_mark``; reused in all
    epochs.

    ``shuffle_partitions``: the number of partitions of Spark's own shuffles.
    ``slots``: those that the subtasks are placed in; ``None``: Spark runs them anywhere.
    ``combined``: an epoch probably has far more rows than groups, so that an operator that aggregates rows by more than
    its key aggregates them before it shuffles them to the subtasks.
    """

    parallelism: int
    max_parallelism: int
    marks: DataFrame
    shuffle_partitions: int
    slots: PlacedSlots | None = None
    combined: bool = False
    _control: dict[tuple[str, ...], list[SparkColumn]] = field(default_factory=dict, compare=False)
    _marks: dict[str, DataFrame] = field(default_factory=dict, compare=False)
    """The marks with the columns of a schema, by its JSON."""

    @classmethod
    def of(
        cls, spark: SparkSession, parallelism: int, max_parallelism: int, shuffle_partitions: int | None = None
    ) -> Subtasks:
        """``shuffle_partitions``: the same number, if it is not given."""
        marks = spark.range(0, parallelism, 1, 1).selectExpr(
            f"element_at({_values(parallelism)}, int(id + 1)) AS {MARK}"
        )
        return cls(parallelism, max_parallelism, marks, shuffle_partitions or parallelism)

    @cached_property
    def marks_with_subtasks(self) -> DataFrame:
        """The marks with their subtasks, ``_subtask``."""
        return self.marks.selectExpr(MARK, f"int(array_position({_values(self.parallelism)}, {MARK}) - 1) AS {SUBTASK}")

    def added_to(self, rows: DataFrame) -> DataFrame:
        """``rows``, which have the column ``_mark``, and the marks, which are null in every column but ``_mark`` and
        ``_subtask``.

        The marks have the columns of ``rows`` in their order, so that Spark need not match columns in each epoch.
        """
        schema = rows.schema
        key = schema.json()
        marks = self._marks.get(key)
        if marks is None:
            own = (MARK, SUBTASK)
            columns = [_column(each.name) if each.name in own else _no_value(each) for each in schema]
            marks = self._marks[key] = self.marks_with_subtasks.select(*columns)
        return rows.union(marks)

    def control(self, keys: Sequence[str]) -> list[SparkColumn]:
        """The columns ``_kg`` and ``_subtask`` of marked rows, as :func:`epochal.state.keygroups.subtask_of` defines.

        They depend only on ``_mark``, as :func:`with_marks` adds it, and the columns ``keys``, so that rows may be
        aggregated by these. Created once for each key, as a column takes calls into the JVM.
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
    def match_spark_shuffle(self) -> bool:
        """True if Spark's own hash partitioning of the keys sends every key group to its subtask, wherever that is."""
        alike = self.shuffle_partitions == self.parallelism
        return self.slots is None and alike and self.max_parallelism % self.parallelism == 0


@cache
def mark_values(parallelism: int) -> tuple[int, ...]:
    """For each subtask an int whose Spark hash selects it: pmod(hash(value), parallelism) == subtask."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < parallelism:
        found.setdefault(hash_key([candidate], _MARK_SCHEMA) % parallelism, candidate)
        candidate += 1
    return tuple(found[subtask] for subtask in range(parallelism))


def with_marks(frame: DataFrame, subtasks: Subtasks) -> DataFrame:
    """``frame`` with ``_mark`` = :data:`UNMARKED`, united with the marks, which are null in every column of ``frame``.

    Grouped by ``_mark`` and then keys, a row is in the partition that Spark assigns to its keys, and a mark in the
    partition of its subtask. Null would have the same hash, but Spark's fast hash map skips rows with a null.
    """
    return subtasks.added_to(frame.selectExpr("*", f"{UNMARKED} AS {MARK}"))


def with_control(frame: DataFrame, keys: Sequence[str], subtasks: Subtasks) -> DataFrame:
    """A marked frame with the columns :meth:`Subtasks.control`."""
    return frame.select("*", *subtasks.control(keys))


def united(
    frames: Sequence[DataFrame],
    inputs: Sequence[Input],
    key: Sequence[Column],
    subtasks: Subtasks,
    columns: Sequence[Sequence[str]] | None = None,
) -> DataFrame:
    """The rows of all inputs and the marks, with control columns. A single input keeps its column names.

    ``columns``: names of the columns of each input that the task uses; by default all. Each input is arranged with one
    select, as Spark analyses the whole plan again for each further one.
    """
    several = len(inputs) > 1
    arranged = []
    for number, (frame, input) in enumerate(zip(frames, inputs, strict=True)):
        names = None if columns is None else columns[number]
        if several:
            own = _tagged(frame.columns if names is None else names, number, input, key)
        else:
            own = ["*"] if names is None else list(map(quoted, names))
        arranged.append(_arranged(frame, input, subtasks, [*own, f"CAST(NULL AS INT) AS {MARK}"]))
    return subtasks.added_to(reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), arranged))


def _arranged(frame: DataFrame, input: Input, subtasks: Subtasks, columns: Sequence[str]) -> DataFrame:
    """The expressions ``columns`` of an input's rows, with ``_kg`` and ``_subtask``."""
    parallelism = subtasks.parallelism
    match input.distribution:
        case Distribution.BY_KEY:
            group = key_group_expression(input.keys, subtasks.max_parallelism)
            return frame.selectExpr(
                *columns, f"int({group}) AS {KEY_GROUP}", f"int({group} % {parallelism}) AS {SUBTASK}"
            )
        case Distribution.TO_ANY:
            # A retried task may read its partition's rows in another order, so they are sorted before they are
            # numbered.
            in_order = frame.sortWithinPartitions(*in_every_column(frame))
            turn = f"(monotonically_increasing_id() + spark_partition_id()) % {parallelism}"
            return in_order.selectExpr(*columns, f"CAST(NULL AS INT) AS {KEY_GROUP}", f"int({turn}) AS {SUBTASK}")
        case Distribution.TO_ALL:
            every = f"explode(sequence(0, {parallelism - 1})) AS {SUBTASK}"
            return frame.selectExpr(*columns, f"CAST(NULL AS INT) AS {KEY_GROUP}", every)
        case Distribution.BY_GROUP:
            them = f"IF({TO} < 0, sequence(0, {parallelism - 1}), array(int({TO} % {parallelism})))"
            group = f"IF({TO} < 0, CAST(NULL AS INT), {TO}) AS {KEY_GROUP}"
            return frame.selectExpr(*columns, group, f"explode({them}) AS {SUBTASK}")


def _tagged(names: Sequence[str], number: int, input: Input, key: Sequence[Column]) -> list[str]:
    """The columns ``names`` of one of several inputs under names of their own, with its number."""
    keyed = dict(zip((name.casefold() for name in input.keys), key, strict=False))
    columns = [f"CAST({number} AS TINYINT) AS {INPUT}"]
    for name in names:
        column = keyed.get(name.casefold())
        if column is not None:
            columns.append(f"CAST({quoted(name)} AS {column.type}) AS {quoted(column.name)}")
        else:
            columns.append(f"{quoted(name)} AS {quoted(carried_name(number, name))}")
    return columns


def in_every_column(
    frame: DataFrame, first: Sequence[str] = (), named: Callable[[str], str] = str
) -> list[SparkColumn]:
    """Sort columns for an order that depends only on the rows of ``frame``: columns ``first``, then all others.

    ``named``: maps the names of its columns to those in the sorted frame.
    """
    leading = {name.casefold() for name in first}
    others = [field for field in frame.schema if field.name.casefold() not in leading]
    rest = (_sortable(_column(named(field.name)), field.dataType) for field in others)
    return [*(_column(named(name)) for name in first), *rest]


def _column(name: str) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.col(quoted(name))


def _no_value(field: StructField) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.lit(None).cast(field.dataType).alias(field.name)


def _sortable(column: SparkColumn, type: DataType) -> SparkColumn:
    """``column`` in a form that Spark can sort: maps as sorted arrays of entries, variants as JSON."""
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
    """``frame``, repartitioned by ``_subtask``; with slots, each subtask at its own."""
    from pyspark.sql import functions as F

    slots = subtasks.slots
    if slots is None:
        return frame.repartitionById(subtasks.parallelism, F.col(SUBTASK))
    slot = f"element_at(array({', '.join(map(str, slots.of))}), {SUBTASK} + 1) AS {SLOT}"
    rows = frame.selectExpr("*", slot).repartitionById(slots.count, F.col(SLOT))
    # The hint forbids a broadcast or a sort; both sides are partitioned alike, so that the join does not shuffle.
    return slots.frame.hint("shuffle_hash").join(rows, SLOT).drop(SLOT)


def sorted_by_subtask(frame: DataFrame, *columns: str | SparkColumn) -> DataFrame:
    """``frame`` with each partition sorted by subtask, then the mark first, then ``columns``."""
    from pyspark.sql import functions as F

    return frame.sortWithinPartitions(SUBTASK, F.expr(MARK).desc_nulls_last(), *columns)


def _values(parallelism: int) -> str:
    return f"array({', '.join(map(str, mark_values(parallelism)))})"
