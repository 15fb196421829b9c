"""How rows come to subtasks, and how every subtask runs in every epoch and knows who it is.

One control row per subtask, its *mark*, rides with the rows (docs/architecture.md, "Which subtask am I"). All frames
that reach an operator's task have, beside their own columns, ``_mark`` int (null in real rows), ``_subtask`` int and
``_kg`` int (null in marks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.state.keygroups import key_group_expression
from epochal.state.murmur3 import hash_key
from epochal.tasks.calls import KEY_GROUP, MARK, SUBTASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARK_SCHEMA = pa.schema([(MARK, pa.int32())])


@dataclass(frozen=True)
class Subtasks:
    """The subtasks of an attempt's operators. ``marks``: one row each, column ``_mark``; for any number of epochs."""

    parallelism: int
    max_parallelism: int
    marks: DataFrame

    @classmethod
    def of(cls, spark: SparkSession, parallelism: int, max_parallelism: int) -> Subtasks:
        marks = spark.range(0, parallelism, 1, 1).selectExpr(
            f"element_at({_values(parallelism)}, int(id + 1)) AS {MARK}"
        )
        return cls(parallelism, max_parallelism, marks)

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
    """``frame`` with ``_mark`` null, united with the marks, which are null in every column of ``frame``."""
    return frame.selectExpr("*", f"CAST(NULL AS INT) AS {MARK}").unionByName(subtasks.marks, allowMissingColumns=True)


def with_control(frame: DataFrame, keys: Sequence[str], subtasks: Subtasks) -> DataFrame:
    """A marked frame with ``_kg`` and, as :func:`epochal.state.keygroups.subtask_of` has it, ``_subtask`` filled in."""
    group, parallelism = key_group_expression(keys, subtasks.max_parallelism), subtasks.parallelism
    called = f"array_position({_values(parallelism)}, {MARK}) - 1"
    return frame.selectExpr(
        "*",
        f"IF({MARK} IS NULL, int({group}), NULL) AS {KEY_GROUP}",
        f"int(IF({MARK} IS NULL, {group} % {parallelism}, {called})) AS {SUBTASK}",
    )


def placed(frame: DataFrame, subtasks: Subtasks) -> DataFrame:
    """Each row in the partition of its ``_subtask``."""
    from pyspark.sql import functions as F

    return frame.repartitionById(subtasks.parallelism, F.col(SUBTASK))


def _values(parallelism: int) -> str:
    return f"array({', '.join(map(str, mark_values(parallelism)))})"
