"""Edits of a pipeline: harmless edits continue the state, harmful edits are named, each with its verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import KeyedProcess, Pipeline, Stream, ValueState, tumbling
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.contracts.configuration import Acceptance
from epochal.pipeline.analysis import analyse
from epochal.pipeline.artifact import load
from epochal.pipeline.definitions import TableDefinition
from epochal.state.canonical import meaning_of
from epochal.state.definition import Call, Written
from epochal.state.evolution import TableChange, compare
from epochal.state.table import StateTable

Build = Callable[[Pipeline], object]
COLUMNS = {
    "k": "cast(id % 7 AS string)",
    "v": "id % 100",
    "w": "id % 13",
    "s": "cast(id % 3 AS string)",
    "xs": "array(id, id + 1)",
    "at": "timestamp_seconds(id)",
    "p": "struct(id AS a, id + 1 AS b)",
}
NAMES = TableDefinition(
    "made", lambda spark: spark.createDataFrame([("1", "one", 1)], "k string, name string, rank int")
)


def rows(pipeline: Pipeline, **more: str) -> Stream:
    return pipeline.read("rows", generator.source({**COLUMNS, **more}))


def totals(change: Callable[[Stream], Stream] = lambda stream: stream, keys: str = "k", **columns: Any) -> Build:
    """An aggregate ``totals`` over the rows after ``change``."""

    def build(pipeline: Pipeline) -> object:
        made = columns or {"n": "count(*)", "lo": "min(v)", "total": "sum(v)", "mean": "avg(v)"}
        return change(rows(pipeline)).key_by(keys).aggregate("totals", **made).write("out", console.sink())

    return build


class Latest(KeyedProcess):
    """The newest value."""

    last = ValueState("v bigint")
    output = "k string, v bigint"
    order_by = ("at",)
    step = 1

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        return []


def over(verbs: Callable[[Stream], Stream]) -> Build:
    def build(pipeline: Pipeline) -> object:
        return verbs(rows(pipeline)).write("out", console.sink())

    return build


def processed(change: Callable[[Stream], Stream] = lambda stream: stream, **settings: Any) -> Build:
    return over(lambda stream: change(stream).key_by("k").process(Latest, **settings))


def hourly(change: Callable[[Stream], Stream] = lambda stream: stream, **columns: str) -> Build:
    return over(
        lambda stream: (
            change(stream)
            .with_watermark("at", "10 seconds")
            .key_by("k")
            .window(tumbling("1 hour"))
            .aggregate("hourly", **(columns or {"total": "sum(v)"}))
        )
    )


def best(change: Callable[[Stream], Stream] = lambda stream: stream) -> Build:
    return over(lambda stream: change(stream.select("k", "v", "at")).key_by("k").top(3, by="v"))


def joined(change: Callable[[Stream], Stream] = lambda stream: stream) -> Build:
    def build(pipeline: Pipeline) -> object:
        left = change(rows(pipeline).select("k", "v", "at")).with_watermark("at", "10 seconds")
        right = pipeline.read("others", generator.source({"k": "cast(id AS string)", "o": "id", "at": COLUMNS["at"]}))
        timed = right.with_watermark("at", "10 seconds", name="others_at")
        both = left.join(
            timed.select("k", "o", "at AS other_at").with_watermark("other_at", "10 seconds", name="o2"),
            on="k",
            within=("0 seconds", "1 hour"),
        )
        return both.write("out", console.sink())

    return build


def deduplicated(change: Callable[[Stream], Stream] = lambda stream: stream, summed: str = "v") -> Build:
    return over(
        lambda stream: (
            change(stream).key_by("k", "s").drop_duplicates().key_by("k").aggregate("sums", t=f"sum({summed})")
        )
    )


def named(change: Callable[[Any], Any] = lambda table: table, how: Any = "inner", argument: str = "rank") -> Build:
    def build(pipeline: Pipeline) -> object:
        table = change(pipeline.table("names", NAMES))
        both = rows(pipeline).join(table, on="k", how=how)
        return both.key_by("k").aggregate("ranks", t=f"sum({argument})").write("out", console.sink())

    return build


def chained(first: str = "sum(v)", second: str = "max(total)", between: str = "total") -> Build:
    return over(
        lambda stream: (
            stream.key_by("k", "s")
            .aggregate("first", total=first)
            .select("k", "s", f"{between} AS total")
            .key_by("s")
            .aggregate("second", over_updates=True, most=second)
        )
    )


def retracted(first: str = "sum(v)", second: str = "sum(total)", least: str = "total > 0") -> Build:
    return over(
        lambda stream: (
            stream.key_by("k")
            .aggregate("first", changes=True, total=first)
            .where(least)
            .select("k", "total % 5 AS size", "total", "_change")
            .key_by("size")
            .aggregate("second", t=second)
        )
    )


def doubled(frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", frame.v * 2)


HARMLESS: dict[str, tuple[Build, Build]] = {
    "the same": (totals(), totals()),
    "case of names": (totals(lo="min(v)"), totals(lo="MIN(V)")),
    "backquotes": (totals(lo="min(v)"), totals(lo="min(`v`)")),
    "space, comments and parentheses": (totals(t="sum(v+1)"), totals(t="sum( /* all */ ((v) + 1) )")),
    "a synonym": (totals(m="avg(v)"), totals(m="mean(v)")),
    "count(1)": (totals(n="count(*)"), totals(n="count(1)")),
    "functions instead of text": (totals(t="sum(v)", n="count(*)"), totals(t=F.sum("v"), n=F.count("*"))),
    "methods instead of text": (totals(t="sum(v * 2)"), totals(t=F.sum(F.col("v") * 2))),
    "when instead of CASE": (
        totals(t="sum(CASE WHEN s = '1' THEN v ELSE 0 END)"),
        totals(t=F.sum(F.when(F.col("s") == "1", F.col("v")).otherwise(0))),
    ),
    "the order of conjuncts": (
        totals(lambda stream: stream.where("v > 1 AND w > 2 AND s = '1'")),
        totals(lambda stream: stream.where("s = '1' AND (w > 2 AND v > 1)")),
    ),
    "one filter in two": (
        totals(lambda stream: stream.where("v > 1 AND w > 2")),
        totals(lambda stream: stream.where("w > 2").where("v > 1")),
    ),
    "a renamed column": (
        totals(t="sum(v)"),
        totals(lambda stream: stream.select("k", "v AS value"), t="sum(value)"),
    ),
    "a helper column": (
        totals(t="sum(v * 3 + w)"),
        totals(lambda stream: stream.with_columns(tripled="v * 3"), t="sum(tripled + w)"),
    ),
    "an unused column": (totals(), totals(lambda stream: stream.with_columns(unused="upper(s)"))),
    "a column dropped": (totals(), totals(lambda stream: stream.drop("s", "w"))),
    "a star": (totals(), totals(lambda stream: stream.select("*", "v + 1 AS more"))),
    "verbs in another order": (
        totals(lambda stream: stream.with_columns(d="v * 2").where("w > 3"), t="sum(d)"),
        totals(lambda stream: stream.where("w > 3").with_columns(d="v * 2"), t="sum(d)"),
    ),
    "columns of the aggregate in another order": (
        totals(lo="min(v)", hi="max(v)"),
        totals(hi="max(v)", lo="min(v)"),
    ),
    "a filter over a renamed column": (
        totals(lambda stream: stream.where("v > 5")),
        totals(lambda stream: stream.select("*", "v AS value").where("value > 5")),
    ),
    "an explicit cast in another spelling": (totals(t="sum(cast(w AS double))"), totals(t="sum(w::double)")),
    "computed from the state": (totals(t="sum(v) + 1"), totals(t="sum(v) * 2")),
    "a sink": (totals(), over(lambda stream: _written_twice(stream))),
    "a window": (hourly(), hourly(lambda stream: stream.with_columns(unused="1"))),
    "a window's column as a function": (
        hourly(total="sum(v)"),
        hourly(lambda s: s.with_columns(x="v"), total="sum(x)"),
    ),
    "top over a renamed source column": (
        best(),
        best(lambda stream: stream.select("k", "v + 0 AS x", "v", "at").drop("x")),
    ),
    "a join's other filter order": (
        joined(lambda stream: stream.where("v > 1 AND k > '1'")),
        joined(lambda stream: stream.where("k > '1'").where("v > 1")),
    ),
    "process": (processed(), processed(lambda stream: stream.with_columns(new="1"))),
    "a duplicate's other columns": (deduplicated(), deduplicated(lambda stream: stream.with_columns(new="1"))),
    "the same table": (named(), named(lambda table: table.select("k", "rank", "name"))),
    "over changes": (retracted(), retracted(least="(total) > 0 /* more */")),
    "a chain": (chained(), chained(between="(total)")),
    "not equal": (
        totals(lambda stream: stream.where("s != '1'")),
        totals(lambda stream: stream.where("s <> '1'")),
    ),
    "transform": (
        totals(lambda stream: stream.transform(doubled)),
        totals(lambda stream: stream.transform(doubled, "with a label")),
    ),
}


def _written_twice(stream: Stream) -> Stream:
    counted = stream.key_by("k").aggregate("totals", n="count(*)", lo="min(v)", total="sum(v)", mean="avg(v)")
    counted.write("again", console.sink())
    return counted


HARMFUL: dict[str, tuple[Build, Build, str]] = {
    "extremes exchanged": (totals(lo="min(v)", hi="max(v)"), totals(lo="max(v)", hi="min(v)"), "refused"),
    "sum to max": (totals(t="sum(v)"), totals(t="max(v)"), "refused"),
    "count to sum": (totals(t="count(*)"), totals(t="sum(v)"), "refused"),
    "distinct": (totals(t="sum(v)"), totals(t="sum(DISTINCT v)"), "evolved"),
    "sum of another column": (totals(t="sum(v)"), totals(t="sum(w)"), "changed"),
    "sum of a multiple": (totals(t="sum(v)"), totals(t="sum(v * 100)"), "changed"),
    "count of a column": (totals(t="count(*)"), totals(t="count(v)"), "changed"),
    "average of another column": (totals(m="avg(v)"), totals(m="avg(w)"), "changed"),
    "a filter in the aggregate": (totals(t="sum(v)"), totals(t="sum(v) FILTER (WHERE w > 3)"), "changed"),
    "a literal for a column": (
        totals(t="sum(if(s = 'w', 1, 0))"),
        totals(t="sum(if(s = w, 1, 0))"),
        "changed",
    ),
    "a filter before": (totals(), totals(lambda stream: stream.where("v > 10")), "changed"),
    "another filter": (
        totals(lambda stream: stream.where("v > 10")),
        totals(lambda stream: stream.where("v > 11")),
        "changed",
    ),
    "a filter taken away": (totals(lambda stream: stream.where("v > 10")), totals(), "changed"),
    "AND to OR": (
        totals(lambda stream: stream.where("v > 10 AND w > 3")),
        totals(lambda stream: stream.where("v > 10 OR w > 3")),
        "changed",
    ),
    "a column replaced upstream": (totals(), totals(lambda stream: stream.with_columns(v="v * 2")), "changed"),
    "two columns exchanged upstream": (
        totals(),
        totals(lambda stream: stream.select("k", "w AS v", "v AS w")),
        "changed",
    ),
    "another key of the same name": (totals(), totals(lambda stream: stream.with_columns(k="s")), "changed"),
    "rows multiplied": (totals(), totals(lambda stream: stream.select("*", "explode(xs) AS x")), "changed"),
    "a union": (totals(), totals(lambda stream: stream.union(stream)), "changed"),
    "an author's function": (totals(), totals(lambda stream: stream.transform(doubled)), "changed"),
    "a filter under a helper's name": (
        totals(lambda stream: stream.with_columns(y="v").where("y > 10")),
        totals(lambda stream: stream.with_columns(y="w").where("y > 10")),
        "changed",
    ),
    "a field": (totals(t="sum(p.a)"), totals(t="sum(p.b)"), "changed"),
    "functions": (totals(t=F.sum(F.col("v") * 2)), totals(t=F.sum(F.col("v") * 3)), "changed"),
    "windows": (hourly(), hourly(total="sum(v + 1)"), "changed"),
    "windows' rows": (hourly(), hourly(lambda stream: stream.where("v > 1")), "changed"),
    "windows' time": (hourly(), hourly(lambda s: s.with_columns(at="at + INTERVAL 1 DAY")), "changed"),
    "top": (best(), best(lambda stream: stream.with_columns(v="v * -1")), "changed"),
    "top's rows": (best(), best(lambda stream: stream.where("v < 50")), "changed"),
    "joins": (joined(), joined(lambda stream: stream.with_columns(v="v + 1")), "changed"),
    "joins' rows": (joined(), joined(lambda stream: stream.where("v > 3")), "changed"),
    "process": (processed(), processed(lambda stream: stream.with_columns(v="v * 2")), "changed"),
    "process' rows": (processed(), processed(lambda stream: stream.where("v > 2")), "changed"),
    "through duplicates": (deduplicated(), deduplicated(lambda s: s.with_columns(v="v * 2")), "changed"),
    "duplicates' rows": (deduplicated(), deduplicated(lambda stream: stream.where("w > 3")), "changed"),
    "a table's rows": (named(), named(lambda table: table.where("rank > 1")), "changed"),
    "a table's column": (named(), named(lambda table: table.with_columns(rank="rank + 1")), "changed"),
    "how a table is joined": (named(), named(how="left"), "changed"),
    "between two aggregates": (chained(), chained(between="total * 2"), "changed"),
    "the first of two aggregates": (chained(), chained(first="sum(w)"), "changed"),
    "computed from the first one's state": (chained(), chained(first="sum(v) * 2"), "changed"),
    "over changes": (retracted(), retracted(least="total > 1"), "changed"),
    "computed from the state under changes": (retracted(), retracted(first="sum(v) * 2"), "changed"),
}


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Callable[[Build], tuple[StateTable, ...]]:
    known: dict[Build, tuple[StateTable, ...]] = {}

    def of(build: Build) -> tuple[StateTable, ...]:
        if build not in known:
            pipeline = Pipeline("edited")
            build(pipeline)
            found = analyse(pipeline.graph(), spark).tables
            known[build] = tuple(StateTable.model_validate_json(table.model_dump_json()) for table in found)
        return known[build]

    return of


def verdicts(changes: tuple[TableChange, ...]) -> set[str]:
    return {change.verdict for change in changes}


@pytest.mark.parametrize("edit", HARMLESS)
def test_harmless_edits_continue_the_state(edit: str, tables: Callable[[Build], tuple[StateTable, ...]]) -> None:
    before, after = map(tables, HARMLESS[edit])
    changes = compare(before, after)
    assert [(each.changed, each.problems) for each in changes if each.problems or each.changed] == []
    assert verdicts(changes) == {"same"}


@pytest.mark.parametrize("edit", HARMFUL)
def test_harmful_edits_are_not_continued_silently(edit: str, tables: Callable[[Build], tuple[StateTable, ...]]) -> None:
    before, after, verdict = HARMFUL[edit]
    changes = compare(tables(before), tables(after))
    assert verdict in verdicts(changes)
    assert all(each.problems for each in changes if each.verdict == verdict)
    operators = {table.operator for table in tables(after)}
    accepted = compare(tables(before), tables(after), acceptance=Acceptance(changed=tuple(operators)))
    could_be = verdict == "changed" and not any(table.changes_of for table in tables(after))
    assert could_be == (not any(each.problems for each in accepted))


PROCESS = """
from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, generator


class Latest(KeyedProcess):
    '''{documented}'''
    last = ValueState("v bigint")
    output = "k string, v bigint"
    limit = {limit}

    def process(self, key, rows, ctx):
        {body}
        return []


def doubled(frame):
    return frame.withColumn("v", frame.v * {factor})


def build() -> Pipeline:
    pipeline = Pipeline("p")
    rows = pipeline.read("rows", generator.source({{"k": "cast(id AS string)", "v": "id"}}))
    processed = rows.transform(doubled).key_by("k").process(Latest, limit={setting})
    processed.write("out", console.sink())
    return pipeline
"""
WRITTEN = {"documented": "The newest.", "limit": 3, "body": "kept = 1", "factor": 2, "setting": 7}


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        ({"documented": "The newest value."}, ()),
        ({"body": "kept = 1  # a comment"}, ()),
        ({"body": "kept = 2"}, ("pipeline.Latest",)),
        ({"limit": 4}, ("pipeline.Latest",)),
        ({"setting": 8}, ("pipeline.Latest",)),
        ({"factor": 3}, ("pipeline.doubled",)),
    ],
)
def test_code_that_differs_is_reported_and_never_refused(
    edit: dict[str, Any], changed: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    def tables_of(name: str, **written: Any) -> tuple[StateTable, ...]:
        (tmp_path / name).mkdir()
        path = tmp_path / name / "pipeline.py"
        path.write_text(PROCESS.format(**written))
        return analyse(load(path).graph(), spark).tables

    (change,) = compare(tables_of("before", **WRITTEN), tables_of("after", **{**WRITTEN, **edit}))
    assert change.code_changed == changed
    assert not change.problems and not change.changed
    assert [note.split("the code of ")[1].split(" ")[0] for note in change.notes] == list(changed)


def test_a_snapshot_without_definitions_is_noted(tables: Callable[[Build], tuple[StateTable, ...]]) -> None:
    known = tables(totals())
    (change,) = compare([table.without_definition() for table in known], known)
    assert change.unknown and not change.problems and "has no definition" in change.notes[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("try_cast(v AS int)", "cast(v AS int)"),
        ("v[0]", "element_at(v, 0)"),
        ("a <=> b", "a = b"),
        ("any_value(v)", "first(v)"),
        ("sort_array(v)", "array_sort(v)"),
        ("date_trunc('day', t)", "date_trunc('hour', t)"),
        ("transform(xs, x -> x + 1)", "transform(xs, x -> x + 2)"),
        ("stddev_pop(v)", "stddev(v)"),
        ("1", "'1'"),
        ("ltrim(v)", "rtrim(v)"),
        ("a div b", "a / b"),
        ("a NOT IN (1)", "a IN (1)"),
        ("cast(v AS decimal(10,2))", "cast(v AS decimal(10,3))"),
        (
            Call(call="__mul__", on="CAST(a AS int) + 1", arguments=("b",)),
            "CAST(a AS int) + 1 * b",
        ),
        ("no sql at all (", "no sql at all ["),
    ],
)
def test_different_expressions_have_different_meanings(one: Written, other: Written) -> None:
    assert meaning_of(one, {}) != meaning_of(other, {})
