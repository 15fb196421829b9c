"""Joins of streams as authors declare them: refusals with their fix, and descriptions without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from epochal import Pipeline, Stream
from epochal.connectors import console, generator
from epochal.errors import PipelineError, SchemaError
from epochal.operators.joins.interval_plan import IntervalJoinOperator
from epochal.pipeline.description import describe
from epochal.pipeline.event_time import time_graph
from epochal.pipeline.kinds import check_kinds
from epochal.state.evolution import compare
from tests.unit.tasks.joined import TIMESTAMP, planned

MINUTE = 60_000_000
FIVE_BEFORE_TEN_AFTER = ("-5 minutes", "10 minutes")


def streams() -> tuple[Pipeline, Stream, Stream]:
    pipeline = Pipeline("ads")
    shown = pipeline.read("shown", generator.source({"ad": "id", "shown_at": "timestamp_seconds(id)"}))
    clicks = pipeline.read("clicks", generator.source({"ad": "id", "clicked_at": "timestamp_seconds(id)"}))
    return pipeline, shown.with_watermark("shown_at", "1 minute"), clicks.with_watermark("clicked_at", "0 seconds")


def test_an_interval_join_is_described_and_delays_the_watermark() -> None:
    pipeline, shown, clicks = streams()
    joined = shown.join(clicks, on="ad", within=FIVE_BEFORE_TEN_AFTER, how="left")
    assert joined.event_time == "shown_at"
    shown.join(clicks, on="ad", within=("-1 hour", "-1 minute"), how="right", name="before").write("b", console.sink())
    full = shown.join(clicks, on="ad", within=("1 minute", "2 minutes"), how="full", name="full")
    assert full.event_time is None
    joined.write("out", console.sink())
    graph = pipeline.graph()
    assert {place.name: getattr(place, "hold", None) for place in time_graph(graph).places} == {
        "shown_at": None,
        "clicked_at": None,
        "join": 10 * MINUTE,
        "before": 60 * MINUTE,
        "full": 2 * MINUTE,
    }
    (join,) = [node for node in describe(graph).nodes if node.name == "join"]
    assert join.type == "interval_join" and str(join.stream) == "append"
    assert join.description == {
        "on": ["ad"],
        "how": "left",
        "within": ["-5 minutes", "10 minutes"],
        "times": ["shown_at", "clicked_at"],
        "hold": "10 minutes",
    }


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a, b: a.join(b, on="ad"), "within"),
        (lambda a, b: a.join(b, on="ad", within="5 minutes"), "two intervals"),
        (lambda a, b: a.join(b, on="ad", within=("1 hour", "-1 hour")), "Swap them"),
        (lambda a, b: a.join(b, on="ad", within=("0 seconds", "1 month")), "no fixed length"),
        (lambda a, b: a.join(b, on="ad", within=FIVE_BEFORE_TEN_AFTER, how="outer"), "left_anti"),
        (lambda a, b: a.join(b, on=[], within=FIVE_BEFORE_TEN_AFTER), "names of the columns"),
        (lambda a, b: a.join(b, on=["ad", "AD"], within=FIVE_BEFORE_TEN_AFTER), "twice"),
        (lambda a, b: a.union(a.key_by("ad").distinct("d")).join(b, on="ad", within=FIVE_BEFORE_TEN_AFTER), "left"),
        (lambda a, b: a.join(streams()[2], on="ad", within=FIVE_BEFORE_TEN_AFTER), "same pipeline"),
    ],
)
def test_invalid_interval_joins_are_refused_with_the_fix(build: Callable[[Stream, Stream], Any], message: str) -> None:
    _, shown, clicks = streams()
    with pytest.raises(PipelineError, match=message):
        build(shown, clicks)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (False, False, "the left and the right stream have no event time, and within= is missing"),
        (True, False, "the right stream has no event time, and within= is missing"),
        (False, True, "the left stream has no event time, and within= is missing"),
    ],
)
def test_all_missing_parts_of_a_join_are_reported_together(left: bool, right: bool, message: str) -> None:
    pipeline = Pipeline("p")
    both = [pipeline.read(name, generator.source({"ad": "id", name: "timestamp_micros(id)"})) for name in ("l", "r")]
    one, other = (
        stream.with_watermark(name, "1 second") if timed else stream
        for stream, name, timed in zip(both, ("l", "r"), (left, right), strict=True)
    )
    with pytest.raises(PipelineError) as refused:
        one.join(other, on="ad")
    assert message in refused.value.message
    assert "with_watermark(" in refused.value.message and "within=(" in refused.value.message


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a, b: a.join(b.latest("ad", order_by="clicked_at"), on="ad", as_of="ad"), "Use as_of='shown_at'"),
        (lambda a, b: a.join(b.latest("ad", order_by="ad"), on="ad", as_of="shown_at"), "Use order_by='clicked_at'"),
        (lambda a, b: a.join(b.latest("x", order_by="clicked_at"), on="ad", as_of="shown_at"), "other keys"),
        (lambda a, b: b.latest(order_by="clicked_at"), "key columns of the versions"),
        (lambda a, b: b.latest("ad", order_by=""), "orders the versions of a key"),
        (
            lambda a, b: a.join(b.latest("ad", order_by="clicked_at"), on="ad", as_of="shown_at", how="full"),
            "cannot be 'full'",
        ),
        (
            lambda a, b: a.join(b.latest("ad", order_by="clicked_at"), on="ad", within=FIVE_BEFORE_TEN_AFTER),
            "takes no within=",
        ),
        (lambda a, b: a.join(b, on="ad", within=FIVE_BEFORE_TEN_AFTER, as_of="shown_at"), "takes no as_of="),
    ],
)
def test_invalid_temporal_joins_are_refused_with_the_fix(build: Callable[[Stream, Stream], Any], message: str) -> None:
    _, shown, clicks = streams()
    with pytest.raises(PipelineError, match=message):
        build(shown, clicks)


def test_a_temporal_join_is_described_and_does_not_delay_the_watermark() -> None:
    pipeline, shown, clicks = streams()
    latest = clicks.latest("ad", order_by="clicked_at", deleted="ad % 2 = 0")
    joined = shown.join(latest, on="ad", as_of="shown_at", how="left", name="seen")
    assert joined.event_time == "shown_at"
    joined.write("out", console.sink())
    (seen,) = [node for node in describe(pipeline.graph()).nodes if node.name == "seen"]
    assert seen.type == "temporal_join" and str(seen.stream) == "append"
    assert seen.description == {"on": ["ad"], "how": "left", "as of": "shown_at", "order by": "clicked_at"}
    assert [place.hold for place in time_graph(pipeline.graph()).places if place.name == "seen"] == [0]  # type: ignore[union-attr]


def test_check_warns_that_a_join_without_time_depends_on_epochs() -> None:
    pipeline, shown, clicks = streams()
    joined = shown.join(clicks.latest("ad", order_by="clicked_at"), on="ad", name="now")
    assert joined.event_time == "shown_at"
    joined.write("out", console.sink())
    (warning,) = describe(pipeline.graph()).warnings
    assert "'now'" in warning and "as_of='shown_at'" in warning


def test_updates_are_refused_as_input_of_a_join() -> None:
    pipeline, shown, clicks = streams()
    newest = (
        shown.key_by("ad")
        .aggregate("newest", shown_at="max(shown_at)")
        .with_watermark("shown_at", "0 seconds", name="newest_at")
    )
    newest.join(clicks, on="ad", within=FIVE_BEFORE_TEN_AFTER).write("out", console.sink())
    with pytest.raises(PipelineError, match="cannot be retracted"):
        check_kinds(pipeline.graph())


KEY = [("ad", pa.int64())]
LEFT = pa.schema([*KEY, ("at", TIMESTAMP), ("price", pa.float64())])


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ([*KEY, ("AT", TIMESTAMP)], "both streams have 'AT'"),
        ([("ad", pa.string()), ("then", TIMESTAMP)], "bigint in the left stream and string in the right"),
        ([("then", TIMESTAMP)], "there is no column 'ad'"),
        ([*KEY, ("than", TIMESTAMP)], "no longer has the column 'then', its event time. Did you mean 'than'"),
        ([*KEY, ("then", TIMESTAMP), ("_count", pa.int64())], "'_count', a name that is reserved in joins"),
        ([*KEY, ("then", TIMESTAMP), ("_0_at", pa.int64())], "'_0_at', a name that is reserved in joins"),
    ],
)
def test_conflicting_columns_are_named(right: list[Any], message: str) -> None:
    times = ("at", "AT" if ("AT", TIMESTAMP) in right else "then")
    with pytest.raises((PipelineError, SchemaError), match=message):
        planned(IntervalJoinOperator("join", ("ad",), 0, 1, "inner", times, True), LEFT, pa.schema(right))


def test_the_columns_equal_those_of_sparks_join() -> None:
    """The key, the other columns of the left stream, then those of the right stream except in semi and anti joins."""
    right = pa.schema([("then", TIMESTAMP), ("AD", pa.int64())])
    names = {}
    for how in ("inner", "right", "left_semi", "left_anti"):
        operator = IntervalJoinOperator("join", ("aD",), 0, 1, how, ("at", "then"), True)  # type: ignore[arg-type]
        names[how] = planned(operator, LEFT, right).output.names
    assert names == {
        "inner": ["ad", "at", "price", "then"],
        "right": ["AD", "at", "price", "then"],
        "left_semi": ["ad", "at", "price"],
        "left_anti": ["ad", "at", "price"],
    }
    clashing = pa.schema([*KEY, ("then", TIMESTAMP), ("price", pa.int64())])
    planned(IntervalJoinOperator("join", ("ad",), 0, 1, "left_semi", ("at", "then"), True), LEFT, clashing)


@pytest.mark.parametrize(
    "changed",
    [
        IntervalJoinOperator("join", ("ad",), 0, 2_000_000, "left", ("at", "then"), True),
        IntervalJoinOperator("join", ("ad",), 0, 1_000_000, "inner", ("at", "then"), True),
    ],
)
def test_an_upgrade_to_another_join_is_refused_by_name(changed: IntervalJoinOperator) -> None:
    right = pa.schema([*KEY, ("then", TIMESTAMP)])
    before = planned(IntervalJoinOperator("join", ("ad",), 0, 1_000_000, "left", ("at", "then"), True), LEFT, right)
    problems = [change.problems for change in compare(before.tables, planned(changed, LEFT, right).tables)]
    assert "'join.left'" in str(problems) and "how left, within 0 seconds to 1 second" in str(problems)
    assert not any(change.problems for change in compare(before.tables, before.tables))
