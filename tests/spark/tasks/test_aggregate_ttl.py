"""Aggregates with groups that expire, compared with a model for any division into epochs."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline, tumbling
from epochal.aggregates.built_in import BUILT_IN
from epochal.aggregates.change_rows import IS, WAS, KeyRows
from epochal.aggregates.plan import AggregationPlan, Part
from epochal.connectors import console, generator
from epochal.contracts.conditions import BEGINNING, microseconds
from epochal.errors import PipelineError
from epochal.operators.aggregate.work import AggregateTtlWork
from epochal.pipeline.description import describe
from epochal.pipeline.stream import Stream
from epochal.state.expiry import Expiry
from epochal.state.table import DELETED_AT, TOUCHED, Column, StateKind, StateTable

KEY = (Column(name="route", type="string"),)
VALUE = (Column(name="flights", type="bigint"), Column(name="worst", type="bigint"))
PARTIALS = StateTable(id="operator", operator="operator", kind=StateKind.AGGREGATE, key=KEY, value=VALUE)
OUTPUT = pa.schema([("route", pa.string()), ("flights", pa.int64()), ("worst", pa.int64())])
TTL = 20


def plan() -> AggregationPlan:
    aggregates = {"flights": BUILT_IN["count"]("*"), "worst": BUILT_IN["max"]("delay")}
    parts = tuple(Part(name, one, one.partials(), (name,)) for name, one in aggregates.items())
    return AggregationPlan("operator", PARTIALS, parts, ())


def living(make_operator: Any, clock: Any, **more: Any) -> tuple[Any, StateTable]:
    expires = Expiry(clock=clock, column=TOUCHED.name, after=TTL)
    table = StateTable.model_validate(PARTIALS.model_dump() | {"value": (*VALUE, TOUCHED), "expires": expires})
    row = OUTPUT if clock == "processing" else OUTPUT.append(pa.field(TOUCHED.name, pa.int64()))
    return make_operator(AggregateTtlWork(plan(), table=table), KEY, row, OUTPUT, tables=(table,), **more), table


@pytest.mark.parametrize("clock", ["processing", "event"])
@pytest.mark.parametrize("number", range(3))
@pytest.mark.alternating(2)
def test_a_group_without_rows_for_its_ttl_starts_again(
    clock: str, number: int, run_seed: int, make_operator: Any
) -> None:
    choose = random.Random(run_seed * 10 + number)
    operator, table = living(make_operator, clock, kind=choose.choice(["heap", "lmdb"]))
    groups: dict[str, tuple[int, int, int]] = {}
    now, late, fire, restarted = 100, BEGINNING, BEGINNING, 0
    for epoch in range(25):
        now += choose.choice([0, 1, 9, 15])
        late, fire = fire, max(fire, now - choose.randint(0, 40)) if epoch else BEGINNING
        operator.at(fire, now)
        seen_by = now if clock == "processing" else late
        rows = []
        for route in choose.sample("abcd", choose.choice([0, 1, 2])):
            flights, worst, at = choose.randint(1, 5), choose.randint(-9, 9), now - choose.randint(0, 60)
            rows.append({"route": route, "flights": flights, "worst": worst, TOUCHED.name: at})
            before = groups.get(route)
            touched = now if clock == "processing" else max(at, late)
            if before is not None and before[2] + TTL > seen_by:
                flights, worst = flights + before[0], max(worst, before[1])
                touched = max(touched, before[2])
            elif before is not None:
                restarted += 1
            groups[route] = (flights, worst, touched)
        expected = [
            {"route": row["route"], **dict(zip(("flights", "worst"), groups[row["route"]][:2], strict=True))}
            for row in rows
        ]
        if choose.random() < 0.3:
            operator.attempt(rows)
        answers = operator.run(rows)
        assert sorted(answers, key=lambda row: row["route"]) == sorted(expected, key=lambda row: row["route"])
        stored = {key: (*values[:2], microseconds(values[2])) for (key,), values in operator.state(table).items()}
        assert stored == groups
    assert restarted, "no group expired"


@pytest.mark.parametrize("clock", ["processing", "event"])
def test_only_deleted_groups_expire(clock: Any, run_seed: int, make_operator: Any) -> None:
    """The output of each group: its previous row, if it had one, and its new row, if it has one."""
    choose = random.Random(run_seed)
    value = (*VALUE, Column(name="gone", type="boolean"))
    partials = PARTIALS.model_copy(update={"value": value})
    expires = Expiry(clock=clock, column=DELETED_AT.name, after=TTL, deleted="gone")
    table = StateTable.model_validate(partials.model_dump() | {"value": (*value, DELETED_AT), "expires": expires})
    assert table.hidden == {DELETED_AT.name}
    gone = BUILT_IN["max"]("gone")
    parts = (*plan().parts, Part("gone", gone, gone.partials(), ("gone",)))
    counted = AggregationPlan("operator", partials, parts, ())
    rows = KeyRows(counted, ())
    row = OUTPUT.append(pa.field("gone", pa.bool_())).append(pa.field(TOUCHED.name, pa.int64()))
    row = row if clock == "event" else row.remove(len(row) - 1)
    work = AggregateTtlWork(counted, rows, table=table, deleted="gone")
    operator = make_operator(work, KEY, row, rows.schema, tables=(table,), kind=choose.choice(["heap", "lmdb"]))
    groups: dict[str, tuple[int, int, bool, int]] = {}
    now, late, fire, expired = 100, BEGINNING, BEGINNING, 0
    for epoch in range(40):
        now += choose.choice([0, 1, 9, 15])
        late, fire = fire, max(fire, now - choose.randint(0, 40)) if epoch else BEGINNING
        operator.at(fire, now)
        seen_by = now if clock == "processing" else late
        given, expected = [], {}
        for route in choose.sample("abcd", choose.choice([0, 1, 2])):
            flights, worst, is_gone = choose.randint(1, 5), choose.randint(-9, 9), choose.random() < 0.2
            at = now - choose.randint(0, 60)
            given.append({"route": route, "flights": flights, "worst": worst, "gone": is_gone, TOUCHED.name: at})
            before = groups.get(route)
            touched = now if clock == "processing" else max(at, late)
            if before is not None and before[2] and before[3] + TTL <= seen_by:
                before, expired = None, expired + 1
            was = before is not None and not before[2]
            if before is not None:
                flights, worst, is_gone = flights + before[0], max(worst, before[1]), is_gone or before[2]
                touched = max(touched, before[3]) if before[2] else touched
            if was or not is_gone:
                expected[route] = (was, not is_gone, before[0] if was and before else None, flights)
            groups[route] = (flights, worst, is_gone, touched)
        if choose.random() < 0.3:
            operator.attempt(given)
        answers = {
            row["route"]: (row[WAS], row[IS], row["__before_flights"] if row[WAS] else None, row["flights"])
            for row in operator.run(given)
        }
        assert answers == expected
        stored = {key: (*kept[:3], kept[3] and microseconds(kept[3])) for (key,), kept in operator.state(table).items()}
        assert stored == {key: (*kept[:3], kept[3] if kept[2] else None) for key, kept in groups.items()}
    assert expired


def rows() -> Stream:
    return Pipeline("p").read("rows", generator.source({"n": "id", "at": "timestamp_seconds(id)"}))


def test_unsupported_ttl_is_refused_with_the_fix() -> None:
    keyed = rows().key_by("n")
    with pytest.raises(PipelineError, match=r"'a' has a ttl and changes=True.*or aggregate in windows"):
        keyed.aggregate("a", changes=True, ttl="1 day", rows="count(*)")
    for wrong, message in (
        ({"deleted_when": "gone", "gone": "max(n > 5)"}, r"deleted_when requires ttl='7 days'"),
        (
            {"deleted_when": "gon", "ttl": "1 day", "gone": "max(n > 5)"},
            r"deleted_when names 'gon'.*Did you mean 'gone'",
        ),
        ({"deleted_when": "max(n > 5)", "ttl": "1 day", "gone": "max(n)"}, r"deleted_when .*rename the column"),
    ):
        with pytest.raises(PipelineError, match=f"'a': {message}"):
            keyed.aggregate("a", changes=True, **wrong)
    changes = keyed.aggregate("b", changes=True, rows="count(*)")
    with pytest.raises(PipelineError, match=r"'c' has a ttl, and its stream retracts earlier rows.*Remove ttl"):
        changes.key_by("rows").aggregate("c", ttl="1 day", keys="count(*)")
    with pytest.raises(PipelineError, match=r"'d' has ttl_on='event_time'.*with_watermark"):
        keyed.aggregate("d", ttl="1 day", ttl_on="event_time", rows="count(*)")
    with pytest.raises(PipelineError, match=r"'e': ttl sets when groups expire.*rename the column"):
        keyed.aggregate("e", ttl="max(ttl)")
    with pytest.raises(PipelineError, match=r"'f': ttl is 'a week'"):
        keyed.aggregate("f", ttl="a week", rows="count(*)")
    windowed = rows().with_watermark("at", "1 day").key_by("n").window(tumbling("1 hour"))
    with pytest.raises(
        PipelineError, match=r"'w' has ttl='7 days'.* is deleted when the window closes.*allowed_lateness"
    ):
        windowed.aggregate("w", ttl="7 days", rows="count(*)")
    windowed.aggregate("v", ttl="max(n)")  # a column of this name
    with pytest.raises(PipelineError, match="Add ttl="):
        rows().with_watermark("at", "1 day").key_by("n").aggregate("g", ttl_on="event_time", rows="count(*)")


def test_the_description_contains_the_ttl() -> None:
    pipeline = Pipeline("p")
    timed = pipeline.read("rows", generator.source({"n": "id", "at": "timestamp_seconds(id)"}))
    keyed = timed.with_watermark("at", "1 day").key_by("n")
    keyed.aggregate("a", ttl="7 days", ttl_on="event_time", rows="count(*)").write("out", console.sink())
    keyed.aggregate("b", ttl="90 minutes", rows="count(*)").write("other", console.sink())
    keyed.aggregate("c", ttl="1 day", deleted_when="gone", gone="max(n > 5)").write("last", console.sink())
    described = {node.name: node.description for node in describe(pipeline.graph()).nodes}
    assert (described["a"]["ttl"], described["a"]["ttl_on"]) == ("7 days", "event_time")
    assert (described["b"]["ttl"], described["b"].get("ttl_on")) == ("90 minutes", None)
    assert (described["c"]["ttl"], described["c"]["deleted_when"]) == ("1 day", "gone")


@pytest.mark.parametrize("gone", ["count(*)", "max(n > 5) AND min(n) > 1", "max(n)"])
def test_deleted_when_requires_a_boolean_aggregate(spark: SparkSession, gone: str) -> None:
    stream = rows().key_by("n").aggregate("items", ttl="1 day", deleted_when="gone", gone=gone)
    with pytest.raises(PipelineError, match=r"'items': deleted_when names column 'gone', which must be one boolean"):
        operator_of(stream).plan([spark.createDataFrame([], "n bigint, at timestamp")])


def operator_of(stream: Stream) -> Any:
    return stream._builder.nodes[stream._node].operator
