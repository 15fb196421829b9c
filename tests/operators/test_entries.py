"""What calls bring is the same to Spark and to the engine without it, whatever the types of their arguments."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from epochal.declarations.entries import CALL_SCHEMA, entry
from epochal.operators.entries import CallsOf
from epochal.service.domain.entries import declared_entries, schema_of

VALUES: dict[str, list[Any]] = {
    "string": ["", 'a "b"\\\n', "é\u0000"],
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-32768],
    "int": [-(2**31)],
    "bigint": [-(2**63), 2**63 - 1, 2**53 + 1],
    "float": [0.5, "NaN"],
    "double": [0.1, 1e300, "-Infinity", 3],
    "decimal(38,2)": ["123456789012345678901234567890123456.78", "-0.01"],
    "binary": ["", "AAEC/w=="],
    "date": ["2013-01-31", "0001-01-01"],
    "timestamp": ["2013-01-31T05:15:00Z", "2013-01-31 07:15:00.000001+02:00", "0001-01-01T00:00:00Z"],
    "timestamp_ntz": ["2013-01-31T05:15:00", "2013-01-31 05:15"],
    "array<bigint>": [[], [1, 2**60, None]],
    "map<string,double>": [{}, {"a": 1.5, "b": None}],
    "struct<a:int,b:array<string>>": [{"a": 1, "b": ["x", None]}],
}


def test_arguments_come_to_spark_as_they_were_sent(spark: SparkSession) -> None:
    names = {f"a{number}": type for number, type in enumerate(VALUES)}
    called = entry("all", names, list(names), None, "")
    node = {"type": "source", "description": {"kind": "entries", "entries": [called.details() | {"table": "t"}]}}
    checked = declared_entries({"nodes": [node]})["all"]
    sent = [{name: value} for name, type in names.items() for value in VALUES[type]] + [{}]
    texts = [checked.checked(arguments, "", 1 << 20) for arguments in sent]
    count = len(texts)
    rows = pa.Table.from_arrays(
        [
            pa.array(["all"] * count),
            pa.array([f"r{number}" for number in range(count)]),
            pa.array(range(count), pa.int64()),
            pa.array(texts),
        ],
        schema=CALL_SCHEMA,
    )
    calls = CallsOf(called)
    expected = calls.table(rows)
    found = calls(spark.createDataFrame(rows)).toArrow().sort_by("sequence").cast(expected.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # of numbers that are not equal to themselves, too
    for arguments, text, row in zip(sent, texts, expected.to_pylist(), strict=True):
        for name in arguments:
            assert row[name] is not None and json.loads(text).keys() == {name}


def test_every_type_has_a_schema() -> None:
    assert schema_of("array<int>")["items"] == {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    assert schema_of("map<string,date>")["additionalProperties"] == {"type": "string", "format": "date"}
    assert schema_of("struct<a:binary>")["properties"]["a"]["contentEncoding"] == "base64"
