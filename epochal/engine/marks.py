"""Marks: one control row per subtask, so that every subtask runs in every epoch and knows who it is.

See docs/architecture.md, "Which subtask am I". All frames that reach an operator's task have, before their own columns,
``_mark`` int (null in real rows), ``_subtask`` int and ``_kg`` int (null in marks).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal.engine.tasks.calls import KEY_GROUP, MARK, SUBTASK
from epochal.state.keygroups import key_group_expression
from epochal.state.murmur3 import hash_key

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


def marks(spark: SparkSession, parallelism: int) -> DataFrame:
    """One row per subtask with its mark: column ``_mark``. May be used in any number of epochs."""
    return spark.range(0, parallelism, 1, 1).selectExpr(f"element_at({_values(parallelism)}, int(id + 1)) AS {MARK}")


def with_marks(frame: DataFrame, marks: DataFrame) -> DataFrame:
    """``frame`` with ``_mark`` null, united with the marks, which are null in every column of ``frame``."""
    return frame.selectExpr("*", f"CAST(NULL AS INT) AS {MARK}").unionByName(marks, allowMissingColumns=True)


def with_control(frame: DataFrame, keys: Sequence[str], parallelism: int, max_parallelism: int) -> DataFrame:
    """A marked frame with ``_kg`` and, as :func:`epochal.state.keygroups.subtask_of` has it, ``_subtask`` filled in."""
    group = key_group_expression(keys, max_parallelism)
    called = f"array_position({_values(parallelism)}, {MARK}) - 1"
    return frame.selectExpr(
        "*",
        f"IF({MARK} IS NULL, int({group}), NULL) AS {KEY_GROUP}",
        f"int(IF({MARK} IS NULL, {group} % {parallelism}, {called})) AS {SUBTASK}",
    )


def _values(parallelism: int) -> str:
    return f"array({', '.join(map(str, mark_values(parallelism)))})"


def rides_spark_shuffle(parallelism: int, max_parallelism: int) -> bool:
    """True when Spark's own hash partitioning of the keys puts every key group on its subtask."""
    return max_parallelism % parallelism == 0
