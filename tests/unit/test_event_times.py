"""The event time of streams and the sources of watermarks, derived from the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, files, nexmark
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input
from epochal.pipeline.event_time import partitions_in, time_graph
from epochal.pipeline.stream import Stream
from epochal.state.watermarks import Declaration, TimedOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECOND = 1_000_000


@dataclass(frozen=True)
class Held(Operator):
    """Uses the event time of its inputs; its output has another event time, ``behind`` microseconds later."""

    name: str
    columns: tuple[str, ...]
    behind: int = 0
    output_time: str | None = "closed_at"
    kind: ClassVar[str] = "held"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(Input(name, Distribution.BY_KEY, ("id",), event_time=name) for name in self.columns)

    @property
    def hold(self) -> int:
        return self.behind

    @property
    def event_time_of_output(self) -> str | None:
        return self.output_time

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        return {}


def held(name: str, *streams: Stream, **fields: Any) -> Stream:
    columns = tuple(stream.event_time or "" for stream in streams)
    return streams[0]._operator(Held(name, columns, **fields), *streams[1:])


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline("times")


def read(pipeline: Pipeline, name: str) -> Stream:
    return pipeline.read(name, files.source("in", format="json", schema="id int, ts timestamp, at timestamp"))


def test_the_event_time_column_is_inherited_by_name(pipeline: Pipeline) -> None:
    rows = read(pipeline, "rows")
    assert rows.event_time is None
    timed = rows.with_watermark("ts", "10 seconds")
    table = pipeline.table("names", files.table("names", format="json", schema="id int, name string"))
    assert timed.event_time == "ts"
    assert timed.where("id > 0").select("id", "ts").join(table, on="id").event_time == "ts"
    assert held("closed", timed).event_time == "closed_at"
    assert held("replaced", timed, output_time=None).event_time is None
    assert timed.key_by("id").aggregate("counts", n="count(*)").event_time is None


def test_a_union_has_an_event_time_if_all_its_streams_share_it(pipeline: Pipeline) -> None:
    one, other = read(pipeline, "one"), read(pipeline, "other")
    timed = one.with_watermark("ts", "10 seconds")
    assert timed.union(other).event_time is None
    assert timed.union(other.with_watermark("at", "1 second")).event_time is None
    assert timed.union(other.with_watermark("TS", "1 second", name="theirs")).event_time == "ts"


def test_watermarks_depend_on_all_previous_declarations_and_operators(pipeline: Pipeline) -> None:
    one = read(pipeline, "one").with_watermark("ts", "10 seconds", idle_after="1 minute")
    other = read(pipeline, "other").with_watermark("ts", "2 seconds", name="other")
    first = held("first", one.union(other), behind=5 * SECOND)
    held("second", first.where("id > 0"), one)
    one.key_by("id").distinct("untimed")
    assert time_graph(pipeline.graph()).places == (
        Declaration("ts", 10 * SECOND, 60 * SECOND),
        Declaration("other", 2 * SECOND),
        TimedOperator("first", ("ts", "other"), 5 * SECOND),
        TimedOperator("second", ("first", "ts")),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "1 second"), "column"),
        (("ts", "soon"), "with_watermark\\(\\): delay"),
        (("ts", "-1 second"), "with_watermark\\(\\): delay"),
        (("ts", 10), "with_watermark\\(\\): delay"),
    ],
)
def test_invalid_watermarks_are_refused(pipeline: Pipeline, arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        read(pipeline, "rows").with_watermark(*arguments)


def test_watermark_names_are_unique(pipeline: Pipeline) -> None:
    rows = read(pipeline, "rows")
    timed = rows.with_watermark("ts", "1 second")
    with pytest.raises(PipelineError, match="already has a watermark"):
        timed.with_watermark("at", "1 second")
    with pytest.raises(PipelineError, match="Two watermarks are named 'ts'"):
        rows.with_watermark("ts", "2 seconds")
    with pytest.raises(PipelineError, match="both named 'ts'"):
        timed.key_by("id").distinct("ts")
    assert rows.with_watermark("eventAt", "2 seconds").where("id > 0")._builder.nodes[-2].name == "event_at"  # type: ignore[union-attr]


def test_rejected_and_late_rows_are_available_only_on_their_stream(pipeline: Pipeline) -> None:
    timed = read(pipeline, "rows").with_watermark("ts", "1 second")
    assert timed.rejected.event_time is None
    with pytest.raises(PipelineError, match="only the stream that with_watermark"):
        timed.where("id > 0").rejected  # noqa: B018
    with pytest.raises(PipelineError, match="this stream has no late rows"):
        held("never_late", timed).late  # noqa: B018


@pytest.mark.parametrize(
    ("column", "known"),
    [
        ("id * 2 AS twice", True),
        ("bid.*", True),
        ("concat('(*)', url)", True),
        (F.concat("url", "extra").alias("text"), True),
        ("to_json(struct(*)) AS row", False),
        ("hash(id, /* all */ *)", False),
        ("struct(* EXCEPT (id))", False),
        (F.to_json(F.struct("*")).alias("row"), False),
        (F.struct(F.col("*")).alias("row"), False),
    ],
)
def test_expressions_over_all_columns_lose_the_partition(column: Any, known: bool) -> None:
    pipeline = Pipeline("bids")
    events = pipeline.read("events", nexmark.source(partitions=2)).select("*", column)
    events.with_watermark("dateTime", "1 second").write("out", console.sink())
    graph = pipeline.graph()
    found = partitions_in(graph, {source.name: source.make() for source in graph.sources})
    assert found.partitioned == ({"date_time": "events"} if known else {})
    assert bool(found.carrying) == known
