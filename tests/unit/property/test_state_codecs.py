"""Keys and rows are decoded as they were encoded; encoded keys are ordered by their columns, nulls first."""

from __future__ import annotations

import math
from datetime import UTC, date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.state import end_of_prefix
from epochal.errors import InvalidKey, SnapshotError
from epochal.state.column_bytes import ends_of_prefixes
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.types import arrow_type

TIMES = st.datetimes()
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(st.characters(codec="utf-8"), max_size=8) | st.text("\0\1\2\3a", max_size=5),
    "binary": st.binary(max_size=8) | st.sampled_from([b"", b"\0", b"\1", b"\0\1\2", b"\2\2\3\3", b"\xff\xff"]),
    "date": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    "timestamp_ntz": TIMES,
    "decimal(10,2)": st.decimals(Decimal("-99999999.99"), Decimal("99999999.99"), places=2),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
}
FLOATS: dict[str, st.SearchStrategy[Any]] = {
    "float": st.floats(width=32),
    "double": st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324]),
}

INTERVALS = st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6))
VARIANTS = st.fixed_dictionaries({"value": st.binary(max_size=4), "metadata": st.binary(max_size=4)})


def _lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values | st.none(), max_size=3)


NESTED: dict[str, st.SearchStrategy[Any]] = {
    "interval day to second": INTERVALS,
    "variant": VARIANTS,
    "array<int>": _lists(VALUES["int"]),
    "array<array<string>>": _lists(_lists(VALUES["string"])),
    "map<date,array<bigint>>": st.dictionaries(VALUES["date"], _lists(VALUES["bigint"])).map(
        lambda entries: list(entries.items())
    ),
    "struct<a:boolean,`b c`:map<string,variant>,d:interval day to second>": st.fixed_dictionaries(
        {
            "a": st.booleans() | st.none(),
            "b c": st.dictionaries(VALUES["string"], VARIANTS | st.none(), max_size=2).map(
                lambda entries: list(entries.items())
            )
            | st.none(),
            "d": INTERVALS | st.none(),
        }
    ),
    "array<struct<x:double,y:decimal(10,2)>>": _lists(
        st.fixed_dictionaries({"x": FLOATS["double"] | st.none(), "y": VALUES["decimal(10,2)"] | st.none()})
    ),
}


@st.composite
def tables(
    draw: st.DrawFn, values: dict[str, st.SearchStrategy[Any]], *, nulls: bool, max_columns: int = 10
) -> pa.Table:
    types = draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=max_columns))
    rows = draw(st.integers(0, 12))
    arrays = []
    for type in types:
        value = values[type] | st.none() if nulls else values[type]
        arrays.append(pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), arrow_type(type)))
    return pa.table(arrays, names=[f"column {position}" for position in range(len(types))])


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


@st.composite
def keys(draw: st.DrawFn) -> pa.Table:
    """Some columns permit nulls and some do not, as in keys of operators and of maps."""
    table = draw(tables(VALUES, nulls=True, max_columns=4))
    declared = [
        field.with_nullable(table.column(field.name).null_count > 0 or draw(st.booleans())) for field in table.schema
    ]
    return table.cast(pa.schema(declared))


@given(keys())
def test_keys_round_trip_and_keep_their_order(table: pa.Table) -> None:
    codec = KeyCodec(table.schema)
    encoded = codec.encode(table)
    rows = rows_of(table)
    decoded = codec.decode(encoded)
    decoded.validate(full=True)
    assert decoded.schema.equals(table.schema)
    assert decoded.equals(table)
    assert [codec.encode_one(row) for row in rows] == encoded
    by_bytes = [row for _, row in sorted(zip(encoded, rows, strict=True), key=lambda pair: pair[0])]
    assert by_bytes == sorted(rows, key=_nulls_first)
    assert len(set(encoded)) == len(set(rows))
    assert codec.decode(codec.encode_array(table)[1:]).equals(table[1:])


@given(keys(), st.data())
def test_leading_columns_are_the_prefix_of_exactly_their_keys(table: pa.Table, data: st.DataObject) -> None:
    codec = KeyCodec(table.schema)
    width = data.draw(st.integers(0, table.num_columns))
    rows, all_encoded = rows_of(table), codec.encode(table)
    for chosen in rows:
        prefix = codec.encode_one(chosen[:width])
        for row, encoded in zip(rows, all_encoded, strict=True):
            assert encoded.startswith(prefix) == (row[:width] == chosen[:width])
            assert codec.leading(encoded, width) == codec.encode_one(row[:width])
        if width and len(prefix):
            assert codec.leading(prefix[:-1], width) is None


@given(
    st.lists(st.binary(max_size=4) | st.sampled_from([b"", b"\xff", b"\xff\xff", b"a\xff"]), max_size=9),
    st.integers(0, 3),
)
def test_the_end_of_a_prefix_is_above_all_keys_with_the_prefix(prefixes: list[bytes], skipped: int) -> None:
    ends = ends_of_prefixes(pa.array(prefixes, pa.binary())[skipped:])
    ends.validate(full=True)
    assert ends.to_pylist() == [end_of_prefix(prefix) for prefix in prefixes[skipped:]]
    for prefix in prefixes:
        end = end_of_prefix(prefix)
        assert end is None or (prefix + b"\xff" * 5 < end and end[:-1] + bytes([end[-1] - 1]) <= prefix)
        assert end is not None or prefix.strip(b"\xff") == b""


@given(tables(VALUES | FLOATS | NESTED, nulls=True), st.data())
def test_rows_round_trip_with_gaps_and_from_slices(table: pa.Table, data: st.DataObject) -> None:
    codec = RowCodec(table.schema)
    encoded: list[bytes | None] = list(codec.encode(table))
    assert _values(codec.decode(encoded)) == _values(table)
    for row, one in zip(table.to_pylist(), encoded, strict=True):
        assert repr(codec.decode_one(one or b"")).replace(
            "datetime.timezone.utc", "zoneinfo.ZoneInfo(key='UTC')"
        ) == repr(row)
    first = data.draw(st.integers(0, table.num_rows))
    assert codec.encode(table.slice(first)) == encoded[first:]
    missing = data.draw(st.lists(st.booleans(), min_size=len(encoded), max_size=len(encoded)))
    holes = [None if hole else row for hole, row in zip(missing, encoded, strict=True)]
    expected = [dict.fromkeys(row) if hole else row for hole, row in zip(missing, table.to_pylist(), strict=True)]
    assert repr(codec.decode(holes).to_pylist()) == repr(expected)


def test_columns_are_found_by_name_and_cast_to_the_schema() -> None:
    codec = KeyCodec(pa.schema([("a", pa.string()), ("b", pa.int64())]))
    given_columns = pa.table({"b": pa.array([7], pa.int32()), "x": [0], "a": pa.array(["k"]).dictionary_encode()})
    assert codec.encode(given_columns) == [codec.encode_one(("k", 7))]
    chunked = pa.concat_tables([given_columns, given_columns])
    assert codec.encode(chunked) == [codec.encode_one(("k", 7))] * 2


def test_nulls_are_refused_in_non_nullable_columns() -> None:
    codec = KeyCodec(pa.schema([pa.field("origin", pa.string(), nullable=False)]))
    with pytest.raises(InvalidKey, match="'origin' is null in 1 row"):
        codec.encode(pa.table({"origin": pa.array(["JFK", None])}))
    with pytest.raises(InvalidKey, match="'origin' takes no nulls"):
        codec.encode_one((None,))
    with pytest.raises(SnapshotError):
        codec.decode([b"\0"])


def test_foreign_bytes_are_refused() -> None:
    codec = KeyCodec(pa.schema([("origin", pa.string()), ("count", pa.int32())]))
    for foreign in (b"", b"JFK", b"JFK\0\0", b"JFK\0\0\0\0\0\0"):
        with pytest.raises(SnapshotError):
            codec.decode([foreign])
    for schema in (pa.schema([("a", pa.int64())]), pa.schema([("a", pa.string())])):
        with pytest.raises(SnapshotError):
            RowCodec(schema).decode([b"\0\1\2"])


def _nulls_first(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        (value is not None, value.encode() if isinstance(value, str) else 0 if value is None else value)
        for value in row
    )


def _values(table: pa.Table) -> str:
    return repr(table.to_pylist())
