"""Which columns of a source nothing reads: a source may leave them out, so one too many would fail every epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochal import KeyedProcess, Pipeline, StaticTable, Stream, tumbling
from epochal import functions as F
from epochal.connectors import console, files, generator
from epochal.pipeline.column_use import unread

COLUMNS = ("a", "b", "c", "Mixed", "at", "end", "1st")
SEVERAL_WAYS = {"end", "1st"}
"""Of these nobody can say whether a text has them: one is a word of SQL, one begins with a digit."""

Build = Callable[[Stream, StaticTable], Stream]


class Each(KeyedProcess):
    output = "a bigint"

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        return []


def left_out(build: Build) -> set[str]:
    """Of the columns those that nothing of the pipeline reads."""
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
def test_what_is_read_is_known_through_verbs(build: Build, read: set[str]) -> None:
    assert left_out(build) == {*COLUMNS} - read - SEVERAL_WAYS


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
def test_what_is_not_known_reads_all(build: Build) -> None:
    assert left_out(build) == set()


def test_rows_stay_rows_where_no_column_is_read() -> None:
    pipeline = Pipeline("unread")
    stream = pipeline.read("rows", generator.source(dict.fromkeys(COLUMNS[:3], "id")))
    stream.select("1 AS one").key_by("one").aggregate("counts", n="count(*)")
    assert len(unread(pipeline.graph(), {"rows": COLUMNS[:3]})["rows"]) == 2
