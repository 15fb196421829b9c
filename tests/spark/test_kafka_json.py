"""JSON that tasks read without Spark has the same meaning as in Spark, which reads the rest."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.connectors.kafka import json_values
from epochal.connectors.kafka.decoding import CORRUPT, OFFSET, PARTITION, TOPIC, VALUE
from epochal.connectors.kafka.frames import record_format
from epochal.connectors.kafka.json_values import JsonDecoder, arrow_fields
from epochal.connectors.kafka.records import Records

DDL = (
    "b boolean, t tinyint, s smallint, i int, l bigint, d double, x string, "
    "a array<bigint>, o struct<l: bigint, x: string, a: array<double>>"
)
NAMES = ("b", "t", "s", "i", "l", "d", "x", "a", "o", "z", "B", "", "o.l")
SCALARS = (
    *("null", "true", "false", "0", "-0", "-0.0", "-0.5", "-0e1", "7", "-7", "127", "128", "200", "-129", "32768"),
    *("2147483648", "9223372036854775807", "9223372036854775808", "1.0", "1.5", "1e3", "1E-400", "1e400", "-1e400"),
    *("0.1", "12345678901234567890123456789", "4.9e-324", "2.2250738585072014e-308", "1e22", "9007199254740993"),
    *("01", "+1", ".5", "1.", "1e", "NaN", "Infinity", "-Infinity", "nul", "True", '"5"', '"NaN"', '""', '"-0 "'),
    *(
        '"text"',
        '"é漢😀"',
        '"\\u00e9"',
        '"\\ud800"',
        '"\\n\\"\\\\/"',
        '"\\/"',
        '"\\x"',
        '"\t"',
        '"\x00"',
        '"\x7f\u2028"',
    ),
    *("'text'", '"}{"', '"]"', '"//"', "/* */ 1", '"2024-02-29"', "1" * 399, "1" * 1001, "0." + "1" * 1001),
)
DAMAGES = (
    lambda text, chance: text[: chance.randrange(len(text) + 1)],
    lambda text, chance: text + text,
    lambda text, chance: text + chance.choice([" ", ",", "}", "]", "} {", " garbage", "\n", "\n{}", "//", "]} {"]),
    lambda text, chance: chance.choice([" ", "\ufeff", "\n", "[", "{}", "null", ","]) + text,
    lambda text, chance: f"[{text}]",
    lambda text, chance: text.replace(":", chance.choice([" : ", ":\t", "=", "::"]), 1),
    lambda text, chance: text.replace('"', chance.choice(["'", ""])),
    lambda text, chance: text.replace("}", ",}", 1),
)


def text_of(chance: Random, depth: int = 0) -> str:
    """One object, mostly with names of the schema."""
    pairs = [(chance.choice(NAMES), value_of(chance, depth)) for _ in range(chance.randrange(5))]
    return "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"


def value_of(chance: Random, depth: int) -> str:
    kind = chance.randrange(10)
    if depth < 2 and kind == 0:
        return text_of(chance, depth + 1)
    if depth < 2 and kind == 1:
        return "[" + ",".join(value_of(chance, depth + 1) for _ in range(chance.randrange(4))) + "]"
    return chance.choice(SCALARS)


def fitting(chance: Random) -> str:
    """An object that fits the schema, some of its fields missing or null."""
    values: dict[str, Any] = {
        "b": chance.random() < 0.5,
        "t": chance.randrange(-128, 128),
        "s": chance.randrange(-(2**15), 2**15),
        "i": chance.randrange(-(2**31), 2**31),
        "l": chance.randrange(-(2**63), 2**63),
        "d": chance.choice([chance.uniform(-1, 1), chance.gauss(0, 1e300), chance.randrange(-(10**18), 10**18)]),
        "x": chance.choice(["", "text", "é漢😀", "a}b{c", 'q"\\']),
        "a": [1, None, 2][: chance.randrange(4)],
        "o": {"l": None, "x": "y", "a": [0.5, -2.5e-300]},
        "z": [{"l": 1}, "ignored", 1.5],
    }
    chosen = {name: value for name, value in values.items() if chance.random() < 0.7}
    return json.dumps(chosen, ensure_ascii=chance.random() < 0.2)


def texts(chance: Random) -> list[str | None]:
    whole = [fitting(chance) for _ in range(300)] + [text_of(chance) for _ in range(500)]
    damaged = [chance.choice(DAMAGES)(chance.choice(whole), chance) for _ in range(300)]
    single = [f'{{"{name}":{value}}}' for name in NAMES[:9] for value in SCALARS]
    deep = [f'{{"z":{"[" * n}{"]" * n}}}' for n in (10, 480, 999, 1000, 1200)]
    long = [f'{{"{"n" * 49_000}":1}}', f'{{"{"n" * 50_001}":1}}', f'{{"x":"{"y" * 60_000}"}}']
    return [*whole, *damaged, *single, *deep, *long, "", "{}", " {}", "null", None]


def test_tasks_read_the_same_values_as_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "LEAST_ROWS", 1)
    values = texts(Random(14))
    fields = arrow_fields(StructType.fromDDL(DDL))
    assert fields is not None
    columns, reasons = JsonDecoder(fields).columns(pa.array([v and v.encode() for v in values], pa.binary()))
    assert reasons is None
    left = columns[-1].to_pylist()
    read = pa.table(columns[:-1], schema=fields).to_pylist()

    format = record_format("kafka.source", "json", DDL, "value", (), "string", "fail")
    rows = [(value, None, "t", 0, offset) for offset, value in enumerate(values)]
    types = f"{VALUE} string, {CORRUPT} string, {TOPIC} string, {PARTITION} int, {OFFSET} bigint"
    expected = format._parsed(spark.createDataFrame(rows, types)).collect()
    for value, text, row, spark_row in zip(values, left, read, expected, strict=True):
        if text is not None:
            assert (text, set(row.values())) == (value, {None})
        else:
            assert spark_row[CORRUPT] is None, value
            whole = spark_row.asDict(recursive=True)
            assert repr({name: whole[name] for name in row}) == repr(row), value  # as text, because 0.0 == -0.0
    assert sum(text is None for text in left[:300]) > 200  # fitting values without \u are not left to Spark


def test_records_read_by_tasks_and_by_spark_are_combined(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "LEAST_ROWS", 1)
    format = record_format("kafka.source", "json", "k string, n int", "value", ("offset",), "string", "fail")
    values = [b'{"k":"a","n":1}', b"{'k':'b'}", None, b'{"k":"c"} {}', b"\xff", b'{"n":3}']
    offsets = np.arange(6)
    records = Records((("t", 0),), np.zeros(6, np.int64), offsets, pa.array(values, pa.binary()))
    task = format._columns()
    assert task.batch(records).column(VALUE).to_pylist() == [None, "{'k':'b'}", None, '{"k":"c"} {}', None, None]
    found = format._parsed(spark.createDataFrame(task.batch(records).to_pandas(), _types(task.schema))).collect()
    assert [(row.k, row.n) for row in found] == [("a", 1), ("b", None), (None, None), *[(None, None)] * 2, (None, 3)]
    assert [row[CORRUPT] is None for row in found] == [True, True, True, False, False, True]
    assert "offset 4 of topic t, partition 0: it is not UTF-8" in found[4][CORRUPT]
    clean = task.batch(records.only(np.array([True, False, True, False, False, True])))
    assert clean.column(TOPIC).null_count == 3  # locations are stored only of values that may be reported


@pytest.mark.parametrize(
    "ddl",
    ["at timestamp", "on date", "n decimal(10, 2)", "f float", "m map<string, int>", "l bigint NOT NULL", "v variant"],
)
def test_types_with_special_parsing_are_left_to_spark(spark: SparkSession, ddl: str) -> None:
    assert arrow_fields(StructType.fromDDL(f"id bigint, {ddl}")) is None


def _types(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
