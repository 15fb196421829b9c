"""The test harness for authors: refusals, time, upgrades, late rows, retries, entries."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, Pipeline, Stream, ValueState, tumbling
from epochal.connectors import console, dbms, files, generator, kafka
from epochal.errors import EpochAborted, EpochalError, IncompatibleState, InvalidInput, PipelineError, SourceError
from epochal.pipeline.analysis import analyse
from epochal.testing import Harness
from epochal.testing.harness import START

EVENTS = {"user": "cast(id as string)", "at": "timestamp_seconds(id)", "n": "id"}


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def of_events(name: str = "p") -> tuple[Pipeline, Stream]:
    """A pipeline, and the stream of its one source."""
    pipeline = Pipeline(name)
    return pipeline, pipeline.read("events", generator.source(EVENTS))


def event(user: str, n: int = 0) -> dict[str, Any]:
    return {"user": user, "at": START, "n": n}


def counted(stream: Any, **more: str) -> Any:
    return stream.key_by("user").aggregate("counts", rows="count(*)", **more)


def random_column(stream: Any, target: str) -> None:
    counted(stream.with_columns(r="rand()"), r="max(r)").write("out", console.sink())


def aggregate_of_updates(stream: Any, target: str) -> None:
    counted(stream).key_by("rows").aggregate("histogram", users="count(*)").write("out", console.sink())


def updates_into_append(stream: Any, target: str) -> None:
    counted(stream).write("out", files.sink(target))


def declared_twice(stream: Any, target: str) -> None:
    twice = stream.with_watermark("at", "1 minute").where("n > 1").with_watermark("at", "2 minutes", name="again")
    counted(twice).write("out", console.sink())


def no_event_time(stream: Any, target: str) -> None:
    stream.with_watermark("n", "1 minute").write("out", console.sink())


def shared_target(stream: Any, target: str) -> None:
    stream.write("one", files.sink(target))
    stream.write("two", files.sink(target))


def column_twice(stream: Any, target: str) -> None:
    stream.select("user", "n AS USER").write("out", console.sink())


def unwritable(stream: Any, target: str) -> None:
    stream.select("map(user, n) AS pairs").write("out", files.sink(target, format="csv"))


@pytest.mark.parametrize(
    "build",
    [
        random_column,
        aggregate_of_updates,
        updates_into_append,
        declared_twice,
        no_event_time,
        shared_target,
        column_twice,
        unwritable,
    ],
)
def test_harness_refuses_with_the_same_message_as_submit(spark: SparkSession, tmp_path: Any, build: Any) -> None:
    pipeline, stream = of_events()
    build(stream, str(tmp_path / "out"))
    with pytest.raises(EpochalError) as submitted:
        analyse(pipeline.graph(), spark, elsewhere=True)
    with pytest.raises(type(submitted.value)) as tested:
        Harness(pipeline, spark)
    assert tested.value.message == submitted.value.message


def by_hour() -> Pipeline:
    pipeline, stream = of_events("hours")
    hours = stream.with_columns(hour="date_trunc('HOUR', at)", day="to_date(at)").key_by("hour", "day")
    hours.aggregate("hours", rows="count(*)").write("out", console.sink())
    return pipeline


def test_time_zone_of_the_session_does_not_change_the_result(spark: SparkSession) -> None:
    """Kolkata is five and a half hours ahead: hours begin at half past, and the day differs."""
    kolkata = spark.newSession()
    kolkata.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    at = datetime(2026, 5, 1, 20, 10)  # noqa: DTZ001 it is read as UTC
    given = kolkata.createDataFrame([("ann", at.replace(tzinfo=UTC), 1)], "user string, at timestamp, n bigint")
    with Harness(by_hour(), kolkata) as test:
        out = test.epoch(events=[("ann", at, 1), ("bob", at.replace(minute=50, tzinfo=UTC), 2)])["out"]
        hour = at.replace(minute=0, tzinfo=UTC)
        assert out.to_pylist() == [{"hour": hour, "day": at.date(), "rows": 2}]
        assert test.epoch(events=given)["out"].to_pylist() == [{"hour": hour, "day": at.date(), "rows": 3}]
        assert test.spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert kolkata.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"


class Seen(KeyedProcess):
    """Outputs the number of rows ten seconds after a user's first row, and twice again in intervals of ten seconds."""

    rows = ValueState("rows bigint, calls int")
    output = "user string, rows bigint, at timestamp"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.rows.get()
        self.rows.set((before.rows if before else 0) + len(rows), before.calls if before else 0)
        if before is None:
            ctx.processing_timer(ctx.epoch_time + timedelta(seconds=10))
        yield from ()

    def on_timer(self, key: Any, at: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.rows.get()
        self.rows.set(before.rows, before.calls + 1)
        if before.calls < 2:
            ctx.processing_timer(at + timedelta(seconds=10))
        yield key.user, before.rows, at


def test_clock_advances_only_on_request(spark: SparkSession) -> None:
    pipeline, stream = of_events("timers")
    stream.key_by("user").process(Seen).write("out", console.sink())
    with Harness(pipeline, spark) as test:
        assert test.epoch(events=[event("ann"), event("bob")])["out"].num_rows == 0
        assert test.clock == START
        assert test.advance(clock=timedelta(seconds=9))["out"].num_rows == 0
        first = test.advance(clock=START + timedelta(seconds=10))["out"]
        assert rows(first) == [(user, 1, START + timedelta(seconds=10)) for user in ("ann", "bob")]
        rest = test.advance(clock=timedelta(hours=1))["out"]
        assert [row[0] for row in rows(rest)] == ["ann", "ann", "bob", "bob"], "also due timers that timers have set"
        assert test.clock == START + timedelta(hours=1, seconds=10)
        with pytest.raises(InvalidInput, match="cannot move back"):
            test.advance(clock=START)
        with pytest.raises(InvalidInput, match="no time zone"):
            test.epoch(at=datetime(2027, 1, 1))  # noqa: DTZ001


def totals(*, where: str = "n >= 0", **columns: str) -> Pipeline:
    pipeline, stream = of_events("totals")
    counts = counted(stream.where(where), **columns)
    counts.write("out", console.sink())
    return pipeline


def test_upgrade_continues_the_state_or_is_refused_as_in_the_service(spark: SparkSession) -> None:
    with Harness(totals(total="sum(n)"), spark) as test:
        test.epoch(events=[event("ann", 1), event("bob", 2)])
        upgraded = test.upgrade(totals(total="sum(n)"))
        assert [(change.table, change.verdict) for change in upgraded.tables] == [("counts", "same")]
        assert upgraded.outputs["out"].num_rows == 0
        assert rows(test.epoch(events=[event("ann", 5)])["out"]) == [("ann", 2, 6)]

        before = test.state("counts").to_pylist()
        with pytest.raises(IncompatibleState, match=r"--allow-dropped-state counts\.total"):
            test.upgrade(totals())
        with pytest.raises(PipelineError, match=r"rand\(\)"):
            test.upgrade(totals(where="rand() > 0"))
        assert test.state("counts").to_pylist() == before
        assert rows(test.epoch(events=[event("ann", 1)])["out"]) == [("ann", 3, 7)], "the previous version"

        upgraded = test.upgrade(totals(), allow_dropped_state=["counts.total"])
        assert upgraded.tables[0].dropped == ("total",)
        test.restart(parallelism=1)
        assert rows(test.epoch(events=[event("bob", 1)])["out"]) == [("bob", 2)]


class Alarm(KeyedProcess):
    total = ValueState("n bigint")
    output = "user string, n bigint"
    fails = False

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.total.set((self.total.get() or 0) + sum(row.n for row in rows))
        ctx.processing_timer(ctx.epoch_time + timedelta(minutes=1))
        yield from ()

    def on_timer(self, key: Any, at: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if self.fails:
            raise ValueError("this version cannot")
        yield key.user, self.total.get()


def test_aborted_upgrade_leaves_the_previous_version(spark: SparkSession) -> None:
    def build(fails: bool) -> Pipeline:
        pipeline, stream = of_events("alarms")
        stream.key_by("user").process(Alarm, fails=fails).write("out", console.sink())
        return pipeline

    now = [START]
    with Harness(build(False), spark, now=lambda: now[0]) as test:
        test.epoch(events=[event("ann", 1)])
        now[0] += timedelta(minutes=2)
        with pytest.raises(EpochAborted, match="this version cannot"):
            test.upgrade(build(True))
        assert rows(test.epoch()["out"]) == [("ann", 1)]
        assert [record.version for record in test._engine.decided] == [1, 1]


def test_late_rows_are_counted_by_operator_epoch_and_in_total(spark: SparkSession) -> None:
    pipeline, stream = of_events("late")
    hours = stream.with_watermark("at", "0 seconds").key_by("user").window(tumbling("1 hour"))
    hours.aggregate("hours", rows="count(*)").write("out", console.sink())

    def at(hour: int) -> dict[str, Any]:
        return {"user": "ann", "at": datetime(2026, 5, 1, hour, tzinfo=UTC), "n": 1}

    with Harness(pipeline, spark) as test:
        test.epoch(events=[at(3)])
        test.epoch(events=[at(9), at(4)])
        test.epoch(events=[at(1), at(2), at(9)])
        test.restart()
        test.epoch(events=[at(1)])
        assert [dict(counts) for counts in test.late.by_epoch] == [{}, {}, {"hours": 2}, {"hours": 1}]
        assert test.late.by_operator == {"hours": 3}
        assert test.late.total == 3


class Guessing(KeyedProcess):
    """Its state depends on a random number, which the analysis cannot detect."""

    guess = ValueState("n double")
    output = "user string, n bigint"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.guess.set(random.random())
        yield key.user, len(rows)


def test_retried_epoch_gives_the_same_result_or_names_the_difference(spark: SparkSession) -> None:
    pipeline, stream = of_events("retried")
    counted(stream).write("counts", console.sink())
    with Harness(pipeline, spark) as test:
        for _ in range(2):
            test.epoch(retried=True, events=[event("ann"), event("bob")])
        assert rows(test.state("counts")) == [("ann", 2), ("bob", 2)]
        assert [record.epoch for record in test._engine.decided] == [2, 4], "each was aborted once"
    pipeline, stream = of_events("guessing")
    stream.key_by("user").process(Guessing).write("out", console.sink())
    with (
        Harness(pipeline, spark) as test,
        pytest.raises(AssertionError, match=r"state table 'guessing.guess' has different"),
    ):
        test.epoch(retried=True, events=[event("ann")])


def test_pipeline_with_unreachable_systems_is_checked_and_run(spark: SparkSession) -> None:
    pipeline = Pipeline("away")
    orders = pipeline.read("orders", kafka.source("nowhere:9", "orders", schema="city string, amount bigint"))
    old = pipeline.read("old", dbms.source("postgresql://nowhere:9/none", "orders", "id"))
    cities = pipeline.table("cities", dbms.table("postgresql://nowhere:9/none", "cities"))
    both = orders.union(old.select("city", "amount")).join(cities, on="city")  # type: ignore[arg-type]
    spent = both.key_by("country").aggregate("spent", total="sum(amount)")
    spent.write("out", dbms.sink("postgresql://nowhere:9/none", "spent", keys="country"))
    columns = {"old": "id bigint, city string, amount bigint", "cities": "city string, country string"}
    known = {"cities": [("Oslo", "NO"), ("Bergen", "NO")]}
    with pytest.raises(SourceError, match=r"Source 'old'.*schemas=\{'old'"):
        Harness.check(pipeline, spark, tables=known, schemas={"cities": columns["cities"]})
    description = Harness.check(pipeline, spark, schemas=columns, tables=known)
    assert [table.id for table in description.tables or ()] == ["spent"]
    with Harness(pipeline, spark, schemas=columns, tables=known) as test:
        out = test.epoch(orders=[("Oslo", 3), ("Rome", 9)], old=[{"id": 1, "city": "Bergen", "amount": 4}])
        assert rows(out["out"]) == [("NO", 7)]
    with pytest.raises(InvalidInput, match="There is no static table 'towns'; there are: cities"):
        Harness.check(pipeline, spark, schemas=columns, tables={"towns": []})


def test_an_entry_is_called(spark: SparkSession) -> None:
    pipeline = Pipeline("doubling")
    calls = pipeline.entry("double", {"n": "int"}, returns="int")
    answers = calls.select("request_id", "CAST(n * 2 AS string) AS value", "IF(n < 0, 'no', NULL) AS error")
    pipeline.answer("double", answers)
    with Harness(pipeline, spark) as test:
        assert [test.call("double", n=n) for n in (4, 5)] == [8, 10]
        with pytest.raises(InvalidInput, match="Entry 'double': no"):
            test.call("double", n=-1)
        with pytest.raises(InvalidInput, match="no entry 'triple'; entries are: double"):
            test.call("triple")


def test_rows_that_do_not_fit_a_source_are_refused(spark: SparkSession) -> None:
    pipeline, stream = of_events("wrong")
    stream.write("out", console.sink())
    with Harness(pipeline, spark) as test:
        with pytest.raises(InvalidInput, match=r"A row of source 'events' has an unknown column 'usr'.*'user'"):
            test.epoch(events=[{"usr": "ann"}])
        with pytest.raises(InvalidInput, match="The rows of source 'events' do not match"):
            test.epoch(events=[("ann", None, "one")])
        with pytest.raises(InvalidInput, match="no source 'rows'"):
            test.epoch(rows=[])
        assert test.epoch(events=[])["out"].num_rows == 0
