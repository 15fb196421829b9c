"""State types: Spark's names, Arrow's types, one JSON form each, and errors that name column and fix."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type

from epochal.errors import InvalidInput, InvalidKey, SchemaError
from epochal.state.json_form import from_json, key_from_json, key_from_path, key_to_path, to_json
from epochal.state.table import Column
from epochal.state.type_names import wider_argument
from epochal.state.types import arrow_type, check_column, is_key_type, shown_type, spark_type, with_spark_types

NAMES = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date"]
NAMES += ["timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(38,38)"]
NESTED = ["interval day to second", "variant", "array<int>", "map<date,array<decimal(5,2)>>"]
NESTED += ["struct<a:array<struct<x:variant>>,b_c:interval day to second>"]


@pytest.mark.parametrize("name", [*NAMES, *NESTED])
def test_type_names_are_sparks_and_round_trip(name: str) -> None:
    assert spark_type(arrow_type(name)) == name
    assert from_arrow_type(arrow_type(name)).simpleString() == name


def test_arrow_types_from_spark_have_names() -> None:
    assert spark_type(pa.timestamp("us", tz="America/New_York")) == "timestamp"
    assert spark_type(pa.dictionary(pa.int32(), pa.large_string())) == "string"
    assert spark_type(pa.binary_view()) == "binary"


@pytest.mark.parametrize(
    ("type", "fix"),
    [
        ("interval year to month", "keep the number of months as int"),
        ("interval", "interval of days to seconds"),
        ("array<interval month>", "keep the number of months as int"),
        ("map<array<int>,int>", "array<struct<..>>"),
        ("struct<a:int,A:int>", "rename one"),
        ("struct<>", "it can hold boolean"),
        ("time(6)", "keep it as string"),
        ("void", "cast it"),
        ("varchar(10)", "use string"),
        ("decimal(39,2)", "the precision is 1 to 38"),
    ],
)
def test_unsupported_types_are_refused_with_the_fix(type: str, fix: str) -> None:
    with pytest.raises(SchemaError, match=rf"column 'c' of state 'streaks.current'.*{re.escape(fix)}"):
        check_column("streaks.current", "c", type, key=False)


def test_floating_point_and_nested_types_are_refused_as_keys() -> None:
    check_column("t", "c", "double", key=False)
    with pytest.raises(SchemaError, match=r"key column 'c' of state 't' is double.*cast it"):
        check_column("t", "c", "double", key=True)
    assert [name for name in NAMES if not is_key_type(name)] == ["float", "double"]
    for type in ("array<int>", "map<string,int>", "struct<a:int>", "variant", "interval day to second"):
        assert not is_key_type(type)
        with pytest.raises(SchemaError, match=r"key column 'c' of state 't' is .* Key by its"):
            check_column("t", "c", type, key=True)


@pytest.mark.parametrize(
    ("type", "value", "form"),
    [
        ("boolean", True, True),
        ("bigint", -(2**63), -(2**63)),
        ("double", 1.5, 1.5),
        ("double", math.inf, "Infinity"),
        ("float", -math.inf, "-Infinity"),
        ("decimal(10,2)", Decimal("12.50"), "12.50"),
        ("decimal(38,10)", Decimal("0E-10"), "0.0000000000"),
        ("string", "é", "é"),
        ("binary", b"\0\xff", "AP8="),
        ("date", date(2013, 1, 31), "2013-01-31"),
        ("timestamp", datetime(2013, 1, 31, 5, 15, tzinfo=UTC), "2013-01-31T05:15:00.000000Z"),
        ("timestamp_ntz", datetime(2013, 1, 31, 5, 15, 0, 7), "2013-01-31T05:15:00.000007"),  # noqa: DTZ001
        ("int", None, None),
        ("interval day to second", timedelta(days=1, hours=2, microseconds=5), "P1DT2H0M0.000005S"),
        ("interval hour", timedelta(days=-106751991, microseconds=-1), "-P106751991DT0H0M0.000001S"),
        ("array<decimal(5,2)>", [Decimal("1.50"), None], ["1.50", None]),
        ("map<date,array<int>>", [(date(2013, 1, 31), [7])], {"2013-01-31": [7]}),
        ("map<double,string>", [(math.inf, "x")], {"Infinity": "x"}),
        ("struct<a:int,`b c`:timestamp>", {"a": 1, "b c": None}, {"a": 1, "b c": None}),
    ],
)
def test_each_type_has_one_json_form(type: str, value: Any, form: Any) -> None:
    assert to_json(value, type) == form
    assert json.loads(json.dumps(form)) == form
    back = from_json(form, Column(name="c", type=type))
    assert back == value and str(back) == str(value)


def test_a_variant_is_shown_as_its_json_value() -> None:
    column = Column(name="c", type="variant")
    for text in ('{"a":[1,2.50,null,"x"]}', "12345678901234567890.123", '"plain"', "null"):
        assert to_json(from_json(text, column), "variant") == text


def test_nan_has_a_json_form() -> None:
    assert to_json(math.nan, "double") == "NaN"
    assert math.isnan(from_json("NaN", Column(name="c", type="double")))


def test_times_are_accepted_in_other_zones() -> None:
    column = Column(name="c", type="timestamp")
    assert from_json("2013-01-31T00:15:00-05:00", column) == datetime(2013, 1, 31, 5, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type", "wrong"),
    [
        ("boolean", 1),
        ("int", True),
        ("int", 1.0),
        ("int", "1"),
        ("tinyint", 128),
        ("bigint", 2**63),
        ("double", "1.5"),
        ("double", "nan"),
        ("double", True),
        ("decimal(5,2)", 12.5),
        ("decimal(5,2)", "1234.5"),
        ("decimal(5,2)", "1.234"),
        ("decimal(5,2)", "1e2"),
        ("string", 5),
        ("string", "\ud800"),
        ("binary", "AP8"),
        ("binary", "A P8="),
        ("date", "2013-02-30"),
        ("date", "20130131"),
        ("timestamp", "2013-01-31T05:15:00"),
        ("timestamp", "2013-01-31T05:15:00.0000001Z"),
        ("timestamp", "2013-01-31"),
        ("timestamp_ntz", "2013-01-31T05:15:00Z"),
        ("string", ["a"]),
        ("array<int>", [1, 1.5]),
        ("array<int>", {"a": 1}),
        ("map<date,int>", {"yesterday": 1}),
        ("struct<a:int>", {"a": 1, "b": 2}),
        ("variant", "{'a'"),
        ("variant", {"a": 1}),
        ("interval day to second", "P"),
        ("interval day to second", "PT"),
        ("interval day to second", "P1Y"),
        ("interval day to second", "P999999999D"),
    ],
)
def test_a_wrong_value_is_refused_with_column_and_types(type: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_json(wrong, Column(name="arrival", type=type))
    assert "'arrival'" in refused.value.message
    assert type in refused.value.message
    assert repr(wrong)[:10] in refused.value.message


ROUTE = (Column(name="origin", type="string"), Column(name="destination", type="string"))
FLIGHT = (
    Column(name="day", type="date"),
    Column(name="number", type="int"),
    Column(name="fare", type="decimal(6,2)"),
    Column(name="late", type="boolean"),
)


def test_keys_are_parsed_from_paths() -> None:
    assert key_from_path("JFK,LAX", ROUTE) == ("JFK", "LAX")
    assert key_from_path("a%2Cb,", ROUTE) == ("a,b", "")
    assert key_from_path("2013-01-31,-7,12.5,true", FLIGHT) == (date(2013, 1, 31), -7, Decimal("12.50"), True)
    assert key_to_path((date(2013, 1, 31), -7, Decimal("12.50"), False), FLIGHT) == "2013-01-31,-7,12.50,false"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("JFK", r"has 1 values, but its columns are \{origin\},\{destination\}"),
        ("JFK,LAX,SFO", "has 3 values"),
        ("JFK,%FF", "UTF-8"),
    ],
)
def test_keys_of_wrong_arity_are_refused(path: str, message: str) -> None:
    with pytest.raises(InvalidKey, match=message):
        key_from_path(path, ROUTE)


@pytest.mark.parametrize("path", ["2013-01-31,1.5,1,true", "x,1,1,true", "2013-01-31,1,1,yes", "2013-01-31,1,NaN,true"])
def test_keys_of_wrong_types_are_refused(path: str) -> None:
    with pytest.raises(InvalidKey, match=r"Column '(day|number|fare|late)'"):
        key_from_path(path, FLIGHT)


def test_null_has_a_form_in_paths() -> None:
    assert key_from_path("JFK,%00", ROUTE) == ("JFK", None)
    assert key_from_path("%00,%00,%00,%00", FLIGHT) == (None,) * 4
    assert key_to_path((None, -7, None, False), FLIGHT) == "%00,-7,%00,false"
    assert key_from_path("%00a,%00%00", ROUTE) == ("\0a", "\0\0")


@given(st.tuples(*[st.text(st.characters(codec="utf-8")) | st.just("\0")] * 2))
def test_all_texts_except_the_form_of_null_round_trip_through_a_path(key: tuple[str, str]) -> None:
    if "\0" in key:
        with pytest.raises(InvalidKey, match=r"represents null in a path.*body"):
            key_to_path(key, ROUTE)
        return
    path = key_to_path(key, ROUTE)
    assert key_from_path(path, ROUTE) == key
    assert "/" not in path and "?" not in path and "#" not in path


def test_keys_are_parsed_from_bodies() -> None:
    assert key_from_json({"destination": "LAX", "origin": "JFK"}, ROUTE) == ("JFK", "LAX")
    assert key_from_json({"destination": None, "origin": "\0"}, ROUTE) == ("\0", None)
    for wrong, message in (
        ({"origin": "JFK"}, "destination missing"),
        ({"origin": "JFK", "destination": "LAX", "via": "SFO"}, "via unknown"),
        ({"origin": "JFK", "destination": 7}, "'destination'"),
    ):
        with pytest.raises(InvalidKey, match=message):
            key_from_json(wrong, ROUTE)


@pytest.mark.parametrize(
    ("arrow", "name"),
    [
        (pa.int64(), "bigint"),
        (pa.decimal256(40, 2), "decimal(40,2)"),
        (pa.large_string(), "string"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.list_(pa.struct([("a", pa.int32()), ("b", pa.date32())])), "array<struct<a:int,b:date>>"),
        (pa.uint8(), "uint8"),
    ],
)
def test_messages_use_sparks_type_names(arrow: pa.DataType, name: str) -> None:
    assert shown_type(arrow) == name


def test_arrows_messages_are_translated_to_sparks_type_names() -> None:
    with pytest.raises(pa.ArrowInvalid) as failed:
        pa.array(["x"]).cast(pa.int64())
    assert with_spark_types(failed.value).endswith("as a scalar of type bigint")
    text = "timestamp[us, tz=UTC] to timestamp[ns], decimal128(38, 2), int32, int32s and 'int64'."
    assert with_spark_types(text) == "timestamp to timestamp_ntz, decimal(38,2), int, int32s and 'int64'"


@pytest.mark.parametrize(
    ("type", "advice"),
    [
        ("bigint", "Cast the argument to decimal(38,0),"),
        ("decimal(20,2)", "Cast the argument to decimal(38,2),"),
        ("decimal(38,0)", "no decimal with more digits than decimal(38,0)"),
        ("decimal(38,2)", "no decimal with more digits than decimal(38,2)"),
        (None, "Cast the argument to a decimal with more digits,"),
    ],
)
def test_the_advice_for_an_overflow_names_a_wider_type(type: str | None, advice: str) -> None:
    assert advice in wider_argument(type)
