"""Look-ups of values derived from stored sums and sketches: one row and many rows give the same JSON."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from datasketches import hll_sketch, kll_doubles_sketch

from epochal.service.queries.state.readers import value_object
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.state.row_codec import RowCodec
from epochal.state.table import Column, Shown, StateKind, StateTable

STORED = {
    "n": "bigint",
    "squares": "double",
    "users": "binary",
    "days": "binary",
    "tags": "array<string>",
    "prices": "array<decimal(4,2)>",
}
FIELDS: list[dict[str, Any]] = [
    {"name": "sd", "type": "double", "function": "spread", "columns": ("n", "squares")},
    {"name": "people", "type": "bigint", "function": "distinct", "columns": ("users",)},
    {"name": "median", "type": "date", "function": "percentiles", "columns": ("days",)},
    {"name": "ends", "type": "array<date>", "function": "percentiles", "columns": ("days",)},
    {"name": "kinds", "type": "bigint", "function": "size", "columns": ("tags",)},
    {"name": "total", "type": "decimal(14,2)", "function": "total", "columns": ("prices",)},
]
OPTIONS = {"sd": {"sample": True, "root": True}, "median": {"percentages": [0.5]}, "ends": {"percentages": [0, 1]}}
TABLE = StateTable(
    id="totals",
    operator="totals",
    kind=StateKind.AGGREGATE,
    key=(Column(name="k", type="string"),),
    value=tuple(Column(name=name, type=type) for name, type in STORED.items()),
    shown=tuple(Shown(**field, options=OPTIONS.get(field["name"], {})) for field in FIELDS),
)


def rows() -> list[dict[str, Any]]:
    users, days = hll_sketch(9), kll_doubles_sketch(200)
    for number in range(5):
        users.update(number)
        days.update(float(number))
    full = {"n": 5, "squares": 16.0, "users": bytes(users.serialize_compact()), "days": bytes(days.serialize())}
    nothing = bytes(kll_doubles_sketch(200).serialize())
    empty = {"n": 1, "squares": 0.0, "users": None, "days": nothing, "tags": [], "prices": None}
    return [{**full, "tags": ["a", "b"], "prices": [Decimal("99.99"), Decimal("0.02")]}, empty]


def test_one_row_and_many_rows_are_formatted_equally() -> None:
    assert StateTable.model_validate_json(TABLE.model_dump_json()) == TABLE
    format = RowFormat(TABLE)
    encoded = RowCodec(TABLE.value_schema).encode(pa.Table.from_pylist(rows(), schema=TABLE.value_schema))
    one_by_one = [format.value_object(row) for row in encoded]
    assert json.loads(format.values_json(encoded)) == one_by_one
    assert [value_object(TABLE, row) for row in rows()] == one_by_one
    names = [field["name"] for field in FIELDS]
    first, second = ([row[name] for name in names] for row in one_by_one)
    days = [date(1970, 1, day).isoformat() for day in (1, 3, 5)]
    assert first == [2.0, 5, days[1], [days[0], days[2]], 2, "100.01"]
    assert second == [None, 0, None, None, 0, None]
