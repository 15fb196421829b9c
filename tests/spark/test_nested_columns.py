"""Columns of type array, map, struct, interval and variant: through streams, every kind of state, and sinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

import epochal
from epochal import BatchFunction, KeyedProcess, ListState, MapState, Pipeline, ValueState
from epochal.backends import json_lines
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import PipelineError, SchemaError
from epochal.pipeline.analysis import analyse
from epochal.snapshots.difference import rows_difference
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.types import arrow_type
from epochal.tasks.values import Unconvertible, arrow_values, python_values
from epochal.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {
    "user": "cast(id as string)",
    "tags": "array('a', null)",
    "prices": "map('x', cast(1 as decimal(30,18)))",
    "place": "named_struct('city', 'Berlin', 'seen', timestamp '2020-01-01 00:00:00')",
    "stay": "interval '1 02:03:04.5' day to second",
    "extra": "parse_json('{\"n\":[1,2.50]}')",
}
DECLARED = (
    "tags array<string>, prices map<string, decimal(30,18)>, place struct<city: string, seen: timestamp>, "
    "stay interval day to second, extra variant"
)
NAMES = ("tags", "prices", "place", "stay", "extra")


class Keep(KeyedProcess):
    """Stores the last row unchanged and returns the previous one."""

    last = ValueState(DECLARED)
    every = ListState("tags array<string>, stay interval day to second")
    by_city = MapState(key="city string", value="prices map<string, decimal(30,18)>")
    output = f"user string, {DECLARED}, before struct<tags: array<string>, seen: int>"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
        for row in rows:
            before = self.last.get()
            self.last.set(row.tags, row.prices, row.place, row.stay, row.extra)
            row.tags.append("appended after set()")
            self.last.get().tags.append("appended to a copy")
            self.every.append(row.tags[:2], row.stay)
            self.by_city.put(row.place["city"], {**self.by_city.get(row.place["city"], {}), **row.prices})
            kept = self.last.get()
            yield (key.user, *kept, {"tags": before and before.tags, "seen": len(self.every.get())})


class KeepBatch(BatchFunction):
    last = ValueState(DECLARED)
    output = f"user string, {DECLARED}"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        rows = batch.select(["user", *NAMES])
        states["last"].put(rows)
        found, values = states["last"].get(rows.select(["user"]))
        assert found.all()
        return pa.table([rows.column("user"), *values.columns], names=["user", *NAMES])


def build() -> Pipeline:
    pipeline = Pipeline("nested")
    rows = pipeline.read("rows", generator.source(COLUMNS))
    keyed = rows.key_by("user")
    keyed.process(Keep).write("kept", console.sink())
    keyed.process_batch(KeepBatch).write("batch", console.sink())
    most = keyed.aggregate("most", tags="max_by(tags, stay)", stay="max(stay)", whole="sum(stay)")
    most.write("most", console.sink())
    return pipeline


SEEN = datetime(2020, 1, 1, tzinfo=UTC)
VARIANT = VariantVal.parseJson('{"n":[1,2.50]}')


def row(user: str, hours: float, tags: list[str | None], price: str = "1.000000000000000001") -> tuple[Any, ...]:
    place = ("Berlin", SEEN.replace(tzinfo=None))
    return (user, tags, {"x": Decimal(price)}, place, timedelta(hours=hours), VARIANT)


@pytest.mark.parametrize("backend", ["heap", pytest.param("lmdb", marks=pytest.mark.long)])
@pytest.mark.alternating(3)
def test_nested_values_go_through_streams_and_every_kind_of_state(spark: SparkSession, backend: str) -> None:
    with Harness(build(), spark, Configuration(state_backend=backend, epoch_interval_seconds=0)) as test:
        test.epoch(rows=[row("ann", 1, ["a", None]), row("bob", -2.5, [])])
        second = test.epoch(rows=[row("ann", 0.5, ["b"], "123456789012.000000000000000001")])
        (kept,) = second["kept"].to_pylist()
        assert kept["tags"] == ["b"] and kept["stay"] == timedelta(minutes=30)
        assert kept["prices"] == [("x", Decimal("123456789012.000000000000000001"))]
        assert kept["place"] == {"city": "Berlin", "seen": SEEN}
        assert kept["before"] == {"tags": ["a", None], "seen": 2}
        assert VariantVal(**kept["extra"]).toJson() == '{"n":[1,2.50]}'
        (batch,) = second["batch"].to_pylist()
        assert {name: batch[name] for name in NAMES} == {name: kept[name] for name in NAMES}
        (most,) = second["most"].to_pylist()
        assert (most["tags"], most["stay"], most["whole"]) == (["a", None], timedelta(hours=1), timedelta(hours=1.5))

        test.restart()
        every = sorted(
            (row["user"], row["_index"], row["tags"], row["stay"]) for row in test.state("keep.every").to_pylist()
        )
        assert [(user, index, tags) for user, index, tags, _ in every] == [
            ("ann", 0, ["a", None]),
            ("ann", 1, ["b", "appended after set()"]),
            ("bob", 0, ["appended after set()"]),
        ]
        prices = {row["user"]: row["prices"] for row in test.state("keep.by_city").to_pylist()}
        assert prices["ann"] == [("x", Decimal("123456789012.000000000000000001"))]
        found = {row.user: row for row in epochal.read_state(spark, test.store, "keep.last").collect()}
        assert found["ann"].tags == ["b"] and found["bob"].stay == timedelta(hours=-2.5)
        assert found["ann"].place.city == "Berlin" and found["ann"].extra.toJson() == '{"n":[1,2.50]}'


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("interval '1' month", r"column 'odd' is interval month.*months as int"),
        ("array(make_interval(1))", r"column 'odd' is array<interval>.*make_dt_interval"),
    ],
)
def test_types_without_a_python_form_are_refused_by_the_check(
    spark: SparkSession, expression: str, message: str
) -> None:
    def pipeline(verb: str) -> Pipeline:
        made = Pipeline("odd")
        rows = made.read("rows", generator.source({"user": "cast(id as string)"})).with_columns(odd=expression)
        if verb == "process":
            rows.key_by("user").process_batch(Users).write("out", console.sink())
        elif verb == "aggregate":
            rows.key_by("user").aggregate("odds", odd="max(odd)").write("out", console.sink())
        else:
            rows.write("out", console.sink())
        return made

    for verb, where in (("process", "Operator 'users'"), ("sink", "Sink 'out'")):
        with pytest.raises(SchemaError, match=f"{where}.*{message}"):
            analyse(pipeline(verb).graph(), spark)
    with pytest.raises(PipelineError, match=r"Operator 'odds', column 'odd'.*max_by"):
        analyse(nested_maximum().graph(), spark)
    if "array" not in expression:
        with pytest.raises(SchemaError, match=r"'odd'.*interval month.*months as int"):
            analyse(pipeline("aggregate").graph(), spark)


def nested_maximum() -> Pipeline:
    pipeline = Pipeline("odd")
    rows = pipeline.read("rows", generator.source({"user": "cast(id as string)"})).with_columns(odd="array(user)")
    rows.key_by("user").aggregate("odds", odd="max(odd)").write("out", console.sink())
    return pipeline


class Users(BatchFunction):
    output = "user string"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        return batch.select(["user"])


def test_nested_key_of_a_map_is_refused() -> None:
    class Wrong(KeyedProcess):
        seen = MapState(key="tags array<string>", value="n int")
        output = "n int"

        def process(self, key: Any, rows: Any, ctx: Any) -> None: ...

    rows = Pipeline("wrong").read("rows", generator.source({"user": "cast(id as string)"}))
    with pytest.raises(
        SchemaError, match=r"key of state 'seen', column 'tags': array<string> cannot be a key.*to_json"
    ):
        rows.key_by("user").process(Wrong)


def test_python_values_survive_a_round_trip() -> None:
    values: dict[str, list[Any]] = {
        "array<array<int>>": [[[1], None, []], None, []],
        "map<int,map<string,date>>": [{1: {"a": None}, 2: None}, {}, None],
        "struct<a:array<bigint>,b:struct<c:string>>": [{"a": [1], "b": {"c": None}}, {"a": None, "b": None}, None],
        "interval day to second": [timedelta(days=-3, microseconds=1), None],
    }
    for type, column in values.items():
        array = arrow_values(column, arrow_type(type))
        array.validate(full=True)
        assert python_values(array) == column
        assert python_values(array.slice(1)) == column[1:]
    assert arrow_values([[("a", 1)], {"b": 2}], arrow_type("map<string,int>")).to_pylist() == [[("a", 1)], [("b", 2)]]
    assert arrow_values([(1, "x")], arrow_type("struct<a:int,b:string>")).to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("type", "wrong", "why"),
    [
        ("array<int>", [1, 1.5], "integer is required"),
        ("array<string>", "text", "takes a list"),
        ("map<string,int>", [("a", 1), ("a", 2)], "each key once"),
        ("map<string,int>", {None: 1}, "no null key"),
        ("struct<a:int,b:int>", {"a": 1}, "all of its fields"),
        ("struct<a:int,b:int>", (1,), "takes a dict"),
        ("interval day to second", 5, "timedelta is required"),
        ("variant", {"a": 1}, "VariantVal.parseJson"),
    ],
)
def test_position_of_an_invalid_value_is_reported(type: str, wrong: Any, why: str) -> None:
    with pytest.raises(Unconvertible, match=why) as refused:
        arrow_values([None, wrong], arrow_type(type))
    assert refused.value.position == 1


def test_differences_include_nested_values() -> None:
    table = StateTable(
        id="t",
        operator="t",
        kind=StateKind.AGGREGATE,
        key=(Column(name="k", type="int"),),
        value=(Column(name="v", type="map<string,array<int>>"),),
    )
    schema = pa.schema([*table.key_schema, *table.value_schema])
    old = pa.Table.from_pylist([{"k": 1, "v": [("a", [1])]}, {"k": 2, "v": None}, {"k": 3, "v": []}], schema)
    new = pa.Table.from_pylist([{"k": 1, "v": [("a", [1])]}, {"k": 2, "v": []}, {"k": 3, "v": [("a", None)]}], schema)
    found = rows_difference(table, old, table, new)
    assert found.new.column("k").to_pylist() == [2, 3]


def test_sinks_write_nested_values_as_spark_reads_them() -> None:
    columns = {
        "array<decimal(38,18)>": [[Decimal("12345678901234567890.123456789012345678"), None], [], None],
        "map<date,string>": [[(datetime(2020, 1, 1).date(), 'q"')], [], None],  # noqa: DTZ001
        "interval day to second": [timedelta(days=-1, microseconds=1), timedelta(0), None],
    }
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, arrow_type(type)) for type, values in columns.items()], names=["a", "m", "i"]
    )
    lines = json_lines.encode(batch).decode().splitlines()
    assert lines[0] == (
        '{"a":[12345678901234567890.123456789012345678,null],"m":{"2020-01-01":"q\\""},'
        '"i":"INTERVAL \'-0 23:59:59.999999\' DAY TO SECOND"}'
    )
    assert json.loads(lines[1]) == {"a": [], "m": {}, "i": "INTERVAL '0 00:00:00' DAY TO SECOND"}
    assert json.loads(lines[2]) == {"a": None, "m": None, "i": None}
