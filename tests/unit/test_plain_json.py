"""JSON that is formatted column by column equals the output of orjson for the objects, byte for byte."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pyarrow as pa
import pytest

from epochal.service.runtime.metrics.lookups import LookupLatencies
from epochal.service.runtime.replicas import row_format
from epochal.service.runtime.replicas.row_format import RowFormat, array_of, plain_objects
from epochal.state.row_codec import RowCodec
from epochal.state.table import Column, StateKind, StateTable

TEXTS = ["", "plain ~", 'a"b', "a\\b", "a\nb", "\x00", "\x7f", "ü", "\u2028", "😀", "},", "null", "%d", None]
NUMBERS = [0.0, -0.0, 0.1, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, 123456789012345680.0, math.inf, math.nan, None]
INTEGERS = [0, -1, (1 << 63) - 1, -(1 << 63), None]
NAMES = ["n", 'quo"te', "per%cent", "ü", "%d"]


def formatted(types: dict[str, str], rows: list[tuple[Any, ...]]) -> tuple[RowFormat, list[bytes]]:
    value = tuple(Column(name=name, type=type) for name, type in types.items())
    table = StateTable(
        id="t", operator="t", kind=StateKind.VALUE, key=(Column(name="k", type="int"),), value=value, queryable=True
    )
    columns = {name: [row[at] for row in rows] for at, name in enumerate(types)}
    return RowFormat(table), RowCodec(table.value_schema).encode(pa.table(columns, schema=table.value_schema))


def expected(format: RowFormat, rows: list[bytes | None]) -> bytes:
    return orjson.dumps([None if row is None else format.value_object(row) for row in rows])


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("string", TEXTS),
        ("double", NUMBERS),
        ("float", [*NUMBERS[:6], 3.4028234663852886e38, *NUMBERS[-3:]]),
        ("bigint", INTEGERS),
        ("int", [0, -(1 << 31), (1 << 31) - 1, None]),
        ("tinyint", [-128, 127, None]),
        ("boolean", [True, False, None]),
    ],
)
def test_batches_of_each_type_equal_the_output_of_orjson(type: str, values: list[Any]) -> None:
    for name in NAMES:
        # Each value alone too: one value that needs the slow path switches its whole batch to it.
        for chosen in (values, [each for each in values if each is not None], *([each] for each in values)):
            format, rows = formatted({name: type, "last": "int"}, [(each, at) for at, each in enumerate(chosen)])
            for batch in (rows, [None, *rows, None], [None, rows[0], None, rows[-1], rows[0]]):
                assert format.values_json(batch) == expected(format, batch), (name, chosen)
            for row in rows:
                assert format.value_json(row) == orjson.dumps(format.value_object(row)), (name, chosen)


def test_one_row_of_integers_equals_the_output_of_orjson() -> None:
    for name in NAMES:
        rows = [(small, big) for small in (0, -(1 << 31), None) for big in INTEGERS]
        format, encoded = formatted({name: "int", "big": "bigint"}, rows)
        for row in encoded:
            assert format.value_json(row) == orjson.dumps(format.value_object(row))
    format, encoded = formatted({"flag": "boolean", "n": "int"}, [(True, 1), (False, None)])
    assert [format.value_json(row) for row in encoded] == [b'{"flag":true,"n":1}', b'{"flag":false,"n":null}']


def test_plain_types_are_formatted_without_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the tests above could pass without using the fast path."""
    format, rows = formatted({"s": "string", "n": "bigint", "d": "double"}, [("a", 1, 0.5), (None, None, 1.0)])
    json_text = expected(format, rows)
    monkeypatch.setattr(row_format, "_json_column", lambda *_: pytest.fail("formatted row by row"))
    assert format.values_json(rows) == json_text


def test_other_types_use_the_general_path() -> None:
    assert plain_objects([("d", pa.array([0], pa.date32()))]) is None
    assert plain_objects([("m", pa.array([None], pa.decimal128(5, 2)))]) is None
    assert plain_objects([]) is None
    sliced = pa.array(["never", "a", "b", "never"])[1:3]
    objects = plain_objects([("s", sliced)])
    assert objects is not None and array_of(objects[1:], [True]) == b'[{"s":"b"}]'
    assert array_of(objects, [False, True, True]) == b'[null,{"s":"a"},{"s":"b"}]'


def test_histogram_buckets_include_their_upper_bound() -> None:
    latencies = LookupLatencies()
    latencies.observe("a", [0.001, 0.0011, 0.00001, 2.5, 2.6, 0.001])
    latencies.observe("a", [0.0001])
    (family,) = latencies.collect()
    found = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert (found["0.0001"], found["0.0005"], found["0.001"], found["0.0025"]) == (2, 2, 4, 5)
    assert (found["1.0"], found["2.5"], found["+Inf"]) == (5, 6, 7)
