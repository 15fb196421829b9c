"""The hash equals Spark's, for single keys and for columns, on every type of key."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from epochal.operators.distribution import Subtasks, mark_values, with_marks
from epochal.state.keygroups import (
    SEED,
    groups_of,
    hash_columns,
    hash_key,
    key_group,
    key_group_expression,
    key_groups,
    subtask_of,
)
from epochal.state.types import arrow_type
from epochal.tasks.subtask_rows import UNMARKED

ROWS = 300
RANDOM = random.Random(7)


def _integers(bits: int) -> list[int]:
    bound = 2 ** (bits - 1)
    return [0, 1, -1, bound - 1, -bound] + [RANDOM.randrange(-bound, bound) for _ in range(ROWS)]


def _decimals(precision: int, scale: int) -> list[Decimal]:
    bound = 10**precision - 1
    integers = [0, 1, -1, 127, 128, -128, -129, 255, 256, bound, -bound]
    integers = [value for value in integers if abs(value) <= bound]
    integers += [RANDOM.randrange(-(10 ** RANDOM.randrange(1, precision + 1)), bound) for _ in range(ROWS)]
    return [Decimal(value).scaleb(-scale, Context(prec=40)) for value in integers if abs(value) <= bound]


def _texts() -> list[str]:
    alphabet = "ab,\0\x7f\u00e9\u6f22\U0001f600"
    return ["", "a", "JFK", "LAXX"] + ["".join(RANDOM.choices(alphabet, k=RANDOM.randrange(12))) for _ in range(ROWS)]


MICROSECONDS = [timedelta(microseconds=value // 100) for value in _integers(64)]
NOON = datetime(2000, 1, 1, 12, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "string": _texts(),
    "binary": [RANDOM.randbytes(RANDOM.randrange(14)) for _ in range(ROWS)],
    "date": [
        date(1, 1, 1),
        date(9999, 12, 31),
        *(date.fromordinal(RANDOM.randrange(1, 3_000_000)) for _ in range(ROWS)),
    ],
    "timestamp": [NOON + offset / 10**6 for offset in MICROSECONDS],
    "timestamp_ntz": [(NOON + offset / 10**6).replace(tzinfo=None) for offset in MICROSECONDS],
    "decimal(9,2)": _decimals(9, 2),
    "decimal(18,0)": _decimals(18, 0),
    "decimal(38,10)": _decimals(38, 10),
}


@pytest.mark.parametrize("type", VALUES)
def test_hash_of_one_column_equals_sparks(spark: SparkSession, type: str) -> None:
    _compare(spark, pa.table({"k": pa.array([*VALUES[type], None], arrow_type(type))}))


def test_hash_of_several_columns_equals_sparks(spark: SparkSession) -> None:
    columns = {
        type: pa.array([RANDOM.choice([*values, None]) for _ in range(ROWS)], arrow_type(type))
        for type, values in VALUES.items()
    }
    _compare(spark, pa.table(columns))


def test_key_groups_agree_with_spark_and_are_owned_once(spark: SparkSession) -> None:
    keys = pa.table({"a b": [None, None, "a", *_texts()], "n`": [None, 7, None, *_integers(64)[: ROWS + 4]]})
    frame = spark.createDataFrame(keys).selectExpr(key_group_expression(["a b", "n`"], 128) + " AS _kg")
    groups = key_groups(keys, keys.schema, 128)
    assert groups.tolist() == [row._kg for row in frame.collect()]
    one_by_one = [key_group(tuple(row.values()), keys.schema, 128) for row in keys.to_pylist()]
    assert groups.tolist() == one_by_one
    for parallelism in (1, 2, 3, 128):
        owned = [groups_of(subtask, parallelism, 128) for subtask in range(parallelism)]
        assert sorted(group for groups in owned for group in groups) == list(range(128))
        assert max(map(len, owned)) - min(map(len, owned)) <= 1
        for subtask, mine in enumerate(owned):
            assert np.isin(groups[subtask_of(groups, parallelism) == subtask], np.array(mine)).all()
            assert all(subtask_of(group, parallelism) == subtask for group in mine)


def test_unmarked_rows_have_the_hash_of_their_keys_and_no_null(spark: SparkSession) -> None:
    """With a null, Spark would not use its fast hash map."""
    assert hash_key([UNMARKED], pa.schema([("_mark", pa.int32())])) == SEED
    assert UNMARKED not in mark_values(1024)
    keys = spark.createDataFrame(pa.table({"a": _texts(), "n": _integers(64)[: ROWS + 4]}))
    rows = with_marks(keys, Subtasks.of(spark, 4, 128)).withColumn("same", F.expr("hash(_mark, a, n) = hash(a, n)"))
    real = rows.where("a IS NOT NULL").select("_mark", "same").distinct().collect()
    assert [tuple(row) for row in real] == [(UNMARKED, True)]
    assert sorted(row._mark for row in rows.where("a IS NULL").collect()) == sorted(mark_values(4))


def _compare(spark: SparkSession, table: pa.Table) -> None:
    names = [f"c{position}" for position in range(table.num_columns)]
    table = table.rename_columns(names)
    expected = [row.h for row in spark.createDataFrame(table).select(F.hash(*names).alias("h")).collect()]
    assert hash_columns(table, table.schema).tolist() == expected
    assert [hash_key(tuple(row.values()), table.schema) for row in table.to_pylist()] == expected
