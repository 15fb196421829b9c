"""Marks: one control row per subtask, so that every subtask runs in every epoch and knows who it is.

See docs/architecture.md, "Which subtask am I". All frames that reach an operator's task have, before their own columns,
``_mark`` int (null in real rows), ``_subtask`` int and ``_kg`` int (null in marks).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal.state.keygroups import key_group_column
from epochal.state.murmur3 import hash_key

MARK, SUBTASK, KEY_GROUP = "_mark", "_subtask", "_kg"
CONTROL = (MARK, SUBTASK, KEY_GROUP)
_MARK_SCHEMA = pa.schema([(MARK, pa.int32())])


@cache
def mark_values(parallelism: int) -> tuple[int, ...]:
    """For each subtask an int whose Spark hash falls on it: pmod(hash(value), parallelism) == subtask."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < parallelism:
        found.setdefault(hash_key([candidate], _MARK_SCHEMA) % parallelism, candidate)
        candidate += 1
    return tuple(found[subtask] for subtask in range(parallelism))


def with_marks(frame: DataFrame, spark: SparkSession, parallelism: int) -> DataFrame:
    """``frame`` with ``_mark``, united with one row per subtask: its mark, and null in every column of ``frame``."""
    values = F.array(*[F.lit(value) for value in mark_values(parallelism)])
    marks = spark.range(0, parallelism, 1, 1).select(F.element_at(values, (F.col("id") + 1).cast("int")).alias(MARK))
    return frame.withColumn(MARK, F.lit(None).cast("int")).unionByName(marks, allowMissingColumns=True)


def with_control(frame: DataFrame, keys: Sequence[str], parallelism: int, max_parallelism: int) -> DataFrame:
    """A marked frame with ``_kg`` and, as :func:`epochal.state.keygroups.subtask_of` has it, ``_subtask`` filled in."""
    values = F.array(*[F.lit(value) for value in mark_values(parallelism)])
    is_mark = F.col(MARK).isNotNull()
    called = (F.array_position(values, F.col(MARK)) - 1).cast("int")
    group = key_group_column(keys, max_parallelism)
    return frame.withColumns(
        {
            KEY_GROUP: F.when(~is_mark, group).cast("int"),
            SUBTASK: F.when(is_mark, called).otherwise(group % parallelism).cast("int"),
        }
    )


def rides_spark_shuffle(parallelism: int, max_parallelism: int) -> bool:
    """True when Spark's own hash partitioning of the keys puts every key group on its subtask."""
    return max_parallelism % parallelism == 0
