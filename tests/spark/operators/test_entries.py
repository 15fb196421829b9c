"""Calls have the same content with and without Spark, for all types of arguments."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal.contracts.inbox import CallBatch, GivenCalls
from epochal.contracts.source import SliceLimits
from epochal.declarations.entry import Entry, entry
from epochal.operators.entries.plan import EntryCalls, EntrySource
from epochal.operators.programs.calls import SERVED_KEPT
from epochal.operators.programs.ports import Port
from epochal.operators.programs.served_calls import ServedAnswer, ServedAnswers, ServedCalls, ServedStream
from epochal.service.domain.entry_calls import declared_entries, schema_of
from epochal.state.json_form import to_json
from epochal.state.types import arrow_type

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
"""For each value of ``OTHERS``, the types of arguments that it fits."""


@pytest.mark.alternating(2)
def test_spark_reads_arguments_as_sent(spark: SparkSession) -> None:
    names = {f"a{number}": type for number, type in enumerate(VALUES)}
    called = entry("all", names, list(names), None, "")
    node = {"type": "source", "description": {"kind": "entries", "entries": [called.details() | {"table": "t"}]}}
    checked = declared_entries({"nodes": [node]})["all"]
    sent = [{name: value} for name, type in names.items() for value in VALUES[type]] + [{}]
    texts = [checked.checked(arguments, "", 1 << 20) for arguments in sent]
    rows = rows_of_calls(spark, called, texts)
    for arguments, text, row in zip(sent, texts, rows, strict=True):
        for name in arguments:
            assert row[name] is not None and json.loads(text).keys() == {name}


def test_an_argument_of_an_old_type_is_null_if_it_does_not_fit(spark: SparkSession) -> None:
    """Calls that the previous version accepted. Values fit if the current version would accept them."""
    names = {f"a{number}": type for number, type in enumerate(VALUES)}
    texts = [json.dumps(dict.fromkeys(names, value)) for value in OTHERS]
    rows = rows_of_calls(spark, entry("all", names, list(names), None, ""), texts)
    for value, row in zip(OTHERS, rows, strict=True):
        fitting = {type for name, type in names.items() if row[name] is not None}
        assert fitting == OTHERS_FIT[OTHERS.index(value)], value


def rows_of_calls(spark: SparkSession, called: Entry, texts: list[str]) -> list[dict[str, Any]]:
    """The rows of calls with these arguments, which are the same with and without Spark. The source also has calls
    of another entry, which has an argument of the same name."""
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
    expected = EntryCalls(called).table(source.table(slice))
    frame = source.read(spark, slice)
    assert frame.schema.simpleString() == source.schema(spark).simpleString()
    found = EntryCalls(called)(frame).toArrow().sort_by("sequence").cast(expected.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # as text, because NaN is not equal to itself
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


def test_answers_of_a_program_have_the_same_json_with_and_without_spark(spark: SparkSession) -> None:
    """Also values that Python's ``json`` cannot write, or writes as invalid JSON."""
    ports = [
        Port(number, f"e{number}", None, None, ("value",), (f"_value_{number}",)) for number in range(len(ANSWERS))
    ]
    entries = [ServedAnswer(port.entry, port, type) for port, type in zip(ports, ANSWERS, strict=True)]
    nothing = Port(99, "nothing", None, None, (), ())
    request_id, sequence = SERVED_KEPT
    rows = [
        {"_port": 99, request_id: "none", sequence: 1},
        {"_port": 0, request_id: "raised", sequence: 2, "_error": "ValueError: x"},
    ]
    for each, values in zip(entries, ANSWERS.values(), strict=True):
        for place, value in enumerate(values):
            name = each.port.columns[0]
            rows.append(
                {"_port": each.port.number, request_id: f"{each.port.number}.{place}", sequence: 3, name: value}
            )
    served_answers = ServedAnswers((*entries, ServedAnswer("nothing", nothing, None)), "1 day")
    kept = [(request_id, pa.string()), (sequence, pa.int64())]
    columns = [(f"_value_{number}", arrow_type(type)) for number, type in enumerate(ANSWERS)]
    given = pa.Table.from_pylist(rows, pa.schema([("_port", pa.int32()), ("_error", pa.string()), *kept, *columns]))
    found = served_answers(spark.createDataFrame(given)).toArrow().to_pylist()
    by_id = {row["request_id"]: _parsed(row) for row in found}
    assert by_id == {row["request_id"]: _parsed(row) for row in served_answers.table(given).to_pylist()}
    assert by_id["none"] == ("nothing", 1, ("JSON", None), None)
    assert by_id["raised"] == ("e0", 2, None, "ValueError: x")
    for number, (type, values) in enumerate(ANSWERS.items()):
        for place, value in enumerate(values):
            assert by_id[f"{number}.{place}"] == (f"e{number}", 3, ("JSON", to_json(value, type)), None)


def test_calls_of_all_entries_are_one_stream_with_and_without_spark(spark: SparkSession) -> None:
    """Distribution by parameters in different columns, by a constant, or without a key."""
    names = {"put": {"key": "string", "value": "bigint"}, "swap": {"other": "string", "key": "string"}}
    names |= {"reset": {}, "add": {"amount": "bigint"}}
    keys: dict[str, Any] = {"put": "key", "swap": "key", "reset": ("it's", "string"), "add": ("all", "string")}
    declared = {name: entry(f"store-{name}", types, [], None, "") for name, types in names.items()}
    unread = entry("unread", {"key": "string"}, [], None, "")
    sent: dict[str, list[dict[str, Any]]] = {
        "put": [{"key": "a", "value": 1}, {"key": "b", "value": 2}],
        "swap": [{"other": "o", "key": "k"}],
        "reset": [{}],
        "add": [{"amount": 7}],
    }
    batches, first = [CallBatch(entry="unread", first=1, request_ids=("u",), arguments=('{"key":"x"}',))], 2
    for name, calls in sent.items():
        ids = tuple(f"{name}.{place}" for place in range(len(calls)))
        texts = tuple(map(json.dumps, calls))
        batches.append(CallBatch(entry=f"store-{name}", first=first, request_ids=ids, arguments=texts))
        first += len(calls)
    source = EntrySource([unread, *declared.values()])
    source.connect(GivenCalls(batches))
    source.restore(None, ())
    slice = source.plan(SliceLimits(None))
    assert slice is not None
    served = ServedStream(
        tuple(ServedCalls(declared[name], name, number, keys[name]) for number, name in enumerate(names))
    )
    without = served.table(source.table(slice))
    found = served(source.read(spark, slice)).toArrow().select(without.column_names).cast(without.schema)
    order = [(SERVED_KEPT[1], "ascending")]
    assert found.sort_by(order).to_pylist() == without.sort_by(order).to_pylist()
    rows = {row[SERVED_KEPT[0]]: row for row in without.to_pylist()}
    assert len(rows) == 5
    for number, (name, calls) in enumerate(sent.items()):
        for place, arguments in enumerate(calls):
            row, columns = rows[f"{name}.{place}"], served.arguments[name]
            assert row["_entry"] == number
            assert {each: row[column] for each, column in columns.items()} == arguments
            assert row["_key"] == (arguments[keys[name]] if isinstance(keys[name], str) else keys[name][0])
    assert len({column for columns in served.arguments.values() for column in columns.values()}) == 3
    unkeyed = ServedStream((ServedCalls(declared["add"], "add", 0, None),))
    assert unkeyed(source.read(spark, slice)).select("_key").toArrow().num_rows == 1
    assert unkeyed.table(source.table(slice)).schema.field("_key").type == pa.int64()


def _parsed(row: dict[str, Any]) -> Any:
    value = None if row["value"] is None else ("JSON", orjson.loads(row["value"]))
    return row["entry"], row["sequence"], value, row["error"]


def test_every_type_has_a_schema() -> None:
    assert schema_of("array<int>")["items"] == {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    assert schema_of("map<string,date>")["additionalProperties"] == {"type": "string", "format": "date"}
    assert schema_of("struct<a:binary>")["properties"]["a"]["contentEncoding"] == "base64"
