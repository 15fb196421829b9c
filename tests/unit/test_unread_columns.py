"""Columns that a pipeline does not read, which its source may omit. A wrong column would fail every epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochal import KeyedProcess, Pipeline, StaticTable, Stream, tumbling
from epochal import functions as F
from epochal.connectors import console, files, generator
from epochal.pipeline.column_use import unread

COLUMNS = ("a", "b", "c", "Mixed", "at", "end", "1st")
SEVERAL_WAYS = {"end", "1st"}
"""Columns that cannot be recognised in SQL text: a keyword of SQL, and a name that begins with a digit."""

Build = Callable[[Stream, StaticTable], Stream]


class Each(KeyedProcess):
    output = "a bigint"

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        return []


def unread_columns(build: Build) -> set[str]:
    """Columns of the source that the pipeline does not read."""
    pipeline = Pipeline("unread")
    stream = pipeline.read("rows", generator.source(dict.fromkeys(COLUMNS, "id")))
    build(stream, pipeline.table("towns", files.table("towns", schema="a bigint, town string")))
    return set(unread(pipeline.graph(), {"rows": COLUMNS}).get("rows", ()))


def counted(stream: Stream, **columns: object) -> Stream:
    return stream.key_by("a").aggregate("counts", **(columns or {"n": "count(*)"}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "read"),
    [
        (lambda s, t: counted(s), {"a"}),
        (lambda s, t: counted(s, n=F.count("*")), {"a"}),
        (lambda s, t: counted(s, n="sum(b * 2) + count(*)"), {"a", "b"}),
        (lambda s, t: counted(s, n=F.max(F.col("MIXED") + 1)), {"a", "Mixed"}),
        (lambda s, t: counted(s, n=F.sum("b"), m="max(`c`)"), {"a", "b", "c"}),
        (lambda s, t: counted(s, n=F.max("b.field")), {"a", "b"}),
        (lambda s, t: counted(s, n="count(b) FILTER (WHERE mixed > 3)"), {"a", "b", "Mixed"}),
        (lambda s, t: s.key_by("b").distinct("keys"), {"b"}),
        (lambda s, t: counted(s.where("c > 1")), {"a", "c"}),
        (lambda s, t: counted(s.select("b AS a", "c")), {"b"}),
        (lambda s, t: counted(s.select("b + 0 AS a", "c + 1 AS d")), {"b", "c"}),
        (lambda s, t: counted(s.with_columns(a="b", d="c")), {"b"}),
        (lambda s, t: counted(s.with_columns(a="a + b")), {"a", "b"}),
        (lambda s, t: counted(s.drop("c")), {"a"}),
        (lambda s, t: counted(s.union(s.where("b = 1"))), {"a", "b"}),
        (lambda s, t: s.join(t, on="a").key_by("town").aggregate("towns", n="sum(b)"), {"a", "b"}),
        (lambda s, t: counted(s.with_watermark("at", "1 second")), {"a", "at"}),
        (
            lambda s, t: (
                s.with_watermark("at", "1 second").key_by("a").window(tumbling("1 minute")).aggregate("w", n="sum(b)")
            ),
            {"a", "b", "at"},
        ),
    ],
)
def test_columns_are_tracked_through_verbs(build: Build, read: set[str]) -> None:
    assert unread_columns(build) == {*COLUMNS} - read - SEVERAL_WAYS


@pytest.mark.parametrize(
    "build",
    [
        lambda s, t: s.write("out", console.sink()),
        lambda s, t: counted(s.select("*", "a + 1 AS d")),
        lambda s, t: counted(s, n="max(struct(*))"),
        lambda s, t: counted(s.where("exists(array(*), x -> x > 1)")),
        lambda s, t: counted(s, n=F.max(F.struct("*"))),
        lambda s, t: counted(s.transform(lambda frame: frame)),
        lambda s, t: counted(s.where("identifier('b') > 1")),
        lambda s, t: s.key_by("a").process(Each),
        lambda s, t: s.key_by("a").top(3, by="b"),
        lambda s, t: counted(s.with_watermark("at", "1 second").rejected),
        lambda s, t: (counted(s), s.write("out", console.sink())),
    ],
)
def test_expressions_that_cannot_be_analysed_read_all_columns(build: Build) -> None:
    assert unread_columns(build) == set()


def test_rows_are_counted_even_if_no_column_is_read() -> None:
    pipeline = Pipeline("unread")
    stream = pipeline.read("rows", generator.source(dict.fromkeys(COLUMNS[:3], "id")))
    stream.select("1 AS one").key_by("one").aggregate("counts", n="count(*)")
    assert len(unread(pipeline.graph(), {"rows": COLUMNS[:3]})["rows"]) == 2
