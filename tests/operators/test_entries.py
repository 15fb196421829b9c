"""What calls bring is the same to Spark and to the engine without it, whatever the types of their arguments."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import SparkSession

from epochal.contracts.inbox import CallBatch, GivenCalls
from epochal.contracts.source import SliceLimits
from epochal.declarations.entries import Entry, entry
from epochal.operators.entries import CallsOf, EntrySource
from epochal.operators.program_streams import AnswersOf, AnswersOfEntry
from epochal.service.domain.entries import declared_entries, schema_of
from epochal.state.json_form import to_json
from epochal.state.types import arrow_type
from epochal.tasks.program_calls import kept_name
from epochal.tasks.program_ports import Port

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

_NUMBERS = {"bigint", "int", "smallint", "tinyint"}
OTHERS: list[Any] = [5, 2**40, 1.5, True, "text", "2013-01-31", "2013-01-31T05:15:00", [1], {"a": 1}, {"a": "x"}]
OTHERS_FIT: list[set[str]] = [
    _NUMBERS | {"float", "double"},
    {"bigint", "float", "double"},
    {"float", "double"},
    {"boolean"},
    {"string", "binary"},
    {"string", "date"},
    {"string", "timestamp_ntz"},
    {"array<bigint>"},
    {"map<string,double>", "struct<a:int,b:array<string>>"},
    set(),
]
"""Of each of them the types that it has a value of."""


def test_arguments_come_to_spark_as_they_were_sent(spark: SparkSession) -> None:
    names = {f"a{number}": type for number, type in enumerate(VALUES)}
    called = entry("all", names, list(names), None, "")
    node = {"type": "source", "description": {"kind": "entries", "entries": [called.details() | {"table": "t"}]}}
    checked = declared_entries({"nodes": [node]})["all"]
    sent = [{name: value} for name, type in names.items() for value in VALUES[type]] + [{}]
    texts = [checked.checked(arguments, "", 1 << 20) for arguments in sent]
    rows = come(spark, called, texts)
    for arguments, text, row in zip(sent, texts, rows, strict=True):
        for name in arguments:
            assert row[name] is not None and json.loads(text).keys() == {name}


def test_an_argument_that_was_of_another_type_is_null_where_it_does_not_fit(spark: SparkSession) -> None:
    """Calls that were taken for the version before. What fits is what would be taken now."""
    names = {f"a{number}": type for number, type in enumerate(VALUES)}
    texts = [json.dumps(dict.fromkeys(names, value)) for value in OTHERS]
    rows = come(spark, entry("all", names, list(names), None, ""), texts)
    for value, row in zip(OTHERS, rows, strict=True):
        fitting = {type for name, type in names.items() if row[name] is not None}
        assert fitting == OTHERS_FIT[OTHERS.index(value)], value


def come(spark: SparkSession, called: Entry, texts: list[str]) -> list[dict[str, Any]]:
    """The rows of calls with these arguments, which are the same in Spark and without it. Beside them are calls of
    another entry, which has an argument of the same name."""
    other = entry("other", {"a0": "bigint"}, [], None, "")
    ids = tuple(f"r{number}" for number in range(len(texts)))
    batches = [
        CallBatch(entry="other", first=1, request_ids=("x", "y"), arguments=('{"a0":1}', '{"a0":2}')),
        CallBatch(entry=called.name, first=3, request_ids=ids, arguments=tuple(texts)),
    ]
    source = EntrySource([other, called])
    source.connect(GivenCalls(batches))
    source.restore(None, ())
    slice = source.plan(SliceLimits(None))
    assert slice is not None
    expected = CallsOf(called).table(source.table(slice))
    frame = source.read(spark, slice)
    assert frame.schema.simpleString() == source.schema(spark).simpleString()
    found = CallsOf(called)(frame).toArrow().sort_by("sequence").cast(expected.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # of numbers that are not equal to themselves, too
    return expected.to_pylist()


ANSWERS: dict[str, list[Any]] = {
    "string": ["", 'a "b"\\\n', "é", None],
    "double": [0.5, float("nan"), float("-inf")],
    "binary": [b"", b"\x00\xff"],
    "boolean": [True],
    "array<double>": [[1.5, None, float("inf")]],
    "map<bigint,string>": [[(1, "x"), (2, None)]],
    "struct<_1:bigint,_2:string>": [{"_1": 1, "_2": None}],
}


def test_what_a_program_answers_is_json_in_one_form_in_spark_and_without_it(spark: SparkSession) -> None:
    """Also what Python's ``json`` cannot write, or writes as what is none."""
    ports = [
        Port(number, f"e{number}", None, None, ("value",), (f"_value_{number}",)) for number in range(len(ANSWERS))
    ]
    entries = [AnswersOfEntry(port.entry, port, port.number, type) for port, type in zip(ports, ANSWERS, strict=True)]
    nothing = Port(99, "nothing", None, None, (), ())
    rows = [{"_port": 99, kept_name(99, 0): "none"}, {"_port": 0, kept_name(0, 0): "raised", "_error": "ValueError: x"}]
    for each, values in zip(entries, ANSWERS.values(), strict=True):
        for place, value in enumerate(values):
            name = each.port.columns[0]
            rows.append({"_port": each.number, each.request_id: f"{each.number}.{place}", name: value})
    asked = AnswersOf((*entries, AnswersOfEntry("nothing", nothing, 99, None)), "1 day")
    kept = [(kept_name(number, 0), pa.string()) for number in (*range(len(ports)), 99)]
    columns = [(f"_value_{number}", arrow_type(type)) for number, type in enumerate(ANSWERS)]
    given = pa.Table.from_pylist(rows, pa.schema([("_port", pa.int32()), ("_error", pa.string()), *kept, *columns]))
    found = asked(spark.createDataFrame(given)).toArrow().to_pylist()
    without = asked.table(given).to_pylist()
    by_id = {row["request_id"]: (row["entry"], _parsed(row["value"]), row["error"]) for row in found}
    assert by_id == {row["request_id"]: (row["entry"], _parsed(row["value"]), row["error"]) for row in without}
    assert by_id["none"] == ("nothing", ("JSON", None), None)
    assert by_id["raised"] == ("e0", None, "ValueError: x")
    for number, (type, values) in enumerate(ANSWERS.items()):
        for place, value in enumerate(values):
            assert by_id[f"{number}.{place}"] == (f"e{number}", ("JSON", to_json(value, type)), None)


def _parsed(value: str | None) -> Any:
    return None if value is None else ("JSON", orjson.loads(value))


def test_every_type_has_a_schema() -> None:
    assert schema_of("array<int>")["items"] == {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    assert schema_of("map<string,date>")["additionalProperties"] == {"type": "string", "format": "date"}
    assert schema_of("struct<a:binary>")["properties"]["a"]["contentEncoding"] == "base64"
