"""Event time through the engine on Spark: watermarks, rejected rows and late rows."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.connectors import console, generator, nexmark
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.event_time import TimedFrames
from epochal.engine.execution import run
from epochal.engine.spark_runner import ALL_ATTEMPTS_OBSERVED
from epochal.errors import EpochAborted, PipelineError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.graph import OperatorNode
from epochal.pipeline.stream import Stream
from epochal.snapshots.store import SnapshotStore
from epochal.state.watermarks import WHOLE
from epochal.testing import Harness
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.delaying import delayed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = 1_000_000
SINK = console.sink()
ROWS = {"id": "id", "ts": "if(id < 0, NULL, timestamp_seconds(id))"}


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def rows(*times: float | None, first: int = 0) -> list[tuple[int, datetime | None]]:
    return [(first + number, None if time is None else at(time)) for number, time in enumerate(times)]


def ids(table: Any) -> list[int]:
    return sorted(table["id"].to_pylist())


@pytest.fixture
def test(spark: SparkSession) -> Iterator[Harness]:
    """A delaying operator with a hold of 5 s, a second one after it, and a count of all accepted rows."""
    pipeline = Pipeline("delays")
    events = pipeline.read("events", generator.source(ROWS)).with_watermark(
        "ts", "10 seconds", idle_after="1 minute", max_ahead="1 hour"
    )
    first = delayed(events, "first", hold=5 * SECOND)
    first.write("first", console.sink())
    first.late.select("id").write("late", console.sink())
    events.rejected.write("rejected", console.sink())
    delayed(first.where("id >= 0"), "second").write("second", console.sink())
    events.key_by("ts").aggregate("accepted", n="count(*)").write("accepted", console.sink())
    with Harness(pipeline, spark) as harness:
        yield harness


@pytest.mark.alternating(3)
def test_rows_fire_one_epoch_after_their_time_and_late_rows_are_counted(test: Harness) -> None:
    shown = test.epoch(at=NOON, events=rows(0, 20, 30))
    assert ids(shown["first"]) == [] and test.watermark("ts") is None
    # The watermark is 10 s behind the latest row. Rows of the epoch that advances it are on time.
    shown = test.epoch(events=rows(19, first=10))
    assert (test.watermark("ts"), test.watermark("first"), test.watermark("second")) == (at(20), at(20), at(15))
    assert ids(shown["first"]) == [0] and ids(shown["second"]) == [0]
    # Now the row with id 20 is late. All operators of the chain close in the same epoch.
    shown = test.epoch(events=rows(19.9, 20, first=20))
    assert test.counts.late_rows == {"first": 1} and test.counts.rows_in == 2
    assert ids(shown["first"]) == [] and ids(test.state("first")) == [1, 2, 10, 21]
    assert ids(shown["late"]) == [20]
    shown = test.advance(watermark=at(25))
    assert ids(shown["first"]) == [1, 10, 21] == ids(shown["second"])
    assert test.counts.late_rows == {}
    test.restart(parallelism=3)
    shown = test.epoch(events=rows(24, first=30))
    assert test.counts.late_rows == {"first": 1} and test.watermark("first") == at(25)


@pytest.mark.alternating(2)
def test_rejected_rows_are_removed_for_every_reader(test: Harness) -> None:
    shown = test.epoch(at=NOON, events=rows(0, None, 3600, 3601))
    assert sum(shown["accepted"]["n"].to_pylist()) == 2 == test.state("first").num_rows
    assert test.counts.rejected_rows == {"ts": 2} and test.counts.late_rows == {}
    assert ids(shown["rejected"]) == [1, 3] and ids(shown["late"]) == []
    # The row too far ahead did not advance the watermark.
    test.epoch(at=at(1))
    assert test.watermark("ts") == at(3590)


@pytest.mark.alternating(2)
def test_input_of_operators_is_observed_once_for_each_operator(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = Pipeline("observed")
    events = pipeline.read("events", generator.source(ROWS)).with_watermark("ts", "0 seconds")
    for name in ("one", "two"):
        delayed(events, name).write(name, console.sink())
    on_time = TimedFrames.on_time

    def explained(self: TimedFrames, node: OperatorNode, frames: Sequence[DataFrame]) -> list[DataFrame]:
        kept = on_time(self, node, frames)
        for frame in kept:
            frame.explain()
        return kept

    monkeypatch.setattr(TimedFrames, "on_time", explained)
    with Harness(pipeline, spark) as test:
        for times in ((10.0,), (20.0,), (5.0, None, 30.0, 6.0)):
            capsys.readouterr()
            test.epoch(at=NOON, events=rows(*times))
        observed = re.findall("CollectMetrics (?:event time|late rows)", capsys.readouterr().out)
        assert len(observed) == 2, observed
        assert test.counts.rejected_rows == {"ts": 1} and test.counts.late_rows == {"one": 2, "two": 2}
        test.epoch()
        assert test.watermark("ts") == at(30)


def test_on_reject_fail_aborts_the_epoch(spark: SparkSession) -> None:
    pipeline = Pipeline("strict")
    events = pipeline.read("events", generator.source(ROWS)).with_watermark("ts", "0 seconds", on_reject="fail")
    events.write("out", console.sink())
    failure = pytest.raises(EpochAborted, match="Watermark 'ts': 2 rows of the epoch have no event time")
    with Harness(pipeline, spark) as test, failure:
        test.epoch(events=rows(0, None, None))


@pytest.mark.long  # without Spark: tests/unit/property/test_event_time_chains.py
@pytest.mark.alternating(2)
def test_lagging_partition_is_not_late(spark: SparkSession, tmp_path: Path) -> None:
    """Row-wise verbs keep the partitions, even if they drop columns. A union of streams is a single partition."""
    pipeline = Pipeline("bids")
    events = pipeline.read("events", nexmark.source(events=2_000, events_per_second=100, partitions=2, skew="1 minute"))
    bids = nexmark.bids(events).select("unix_micros(dateTime) AS id", "dateTime AS ts").where("id > 0")
    delayed(bids.with_watermark("ts", "1 second"), "partitioned").write("partitioned", console.sink())
    both = (
        nexmark.bids(events)
        .union(nexmark.bids(events).where("price < 0"))
        .select("unix_micros(dateTime) AS id", "dateTime AS ts")
    )
    delayed(both.with_watermark("ts", "1 second", name="whole"), "united").write("united", console.sink())
    state, orders = MemoryCatalogState(), orders_of(tmp_path, max_records_per_epoch=500)
    run(orders, pipeline.graph(), spark, MemoryCatalog(state, 1))
    manifests = [SnapshotStore(orders.store).read_manifest(each.manifest) for each in state.decided if each.manifest]
    assert len(manifests) >= 4
    late = Counter[str]()
    for manifest in manifests:
        late.update(manifest.counts.late_rows)
    assert late["partitioned"] == 0 and late["united"] > 400
    clock = manifests[-1].clock
    ahead, behind = (clock.partitions["ts"][partition].watermark for partition in ("0", "1"))
    assert 55 * SECOND < ahead - behind < 65 * SECOND
    assert clock.places["partitioned"].fire == behind
    assert list(clock.partitions["whole"]) == [WHOLE]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.where("id > 0").select("ts", "id", "note").drop("note"), None),
        (lambda rows: rows.transform(lambda frame: frame.where("id > 0").select("id", "ts")), None),
        (lambda rows: rows.drop("ts"), r"uses event time 'ts', which drop\(ts\) after .* removes"),
        (lambda rows: rows.with_columns(ts="ts + INTERVAL 1 DAY").where("id > 0"), r"which with_columns\(ts\) after"),
        (lambda rows: rows.transform(lambda frame: frame.selectExpr("id", "now() AS ts"), "late"), r"which transform"),
        (lambda rows: rows.with_columns(ts="ts + INTERVAL 1 DAY").with_watermark("ts", "1 day", name="moved"), None),
        (lambda rows: rows.where("id > 0").with_watermark("ts", "1 day", name="again"), "called twice for one stream"),
        (lambda rows: rows.with_watermark("note", "1 day"), "already has a watermark"),
    ],
)
def test_a_transform_that_changes_the_event_time_is_named(
    spark: SparkSession, change: Callable[[Stream], Stream], message: str | None
) -> None:
    pipeline = Pipeline("changed")
    source = generator.source({**ROWS, "note": "''"})
    with nullcontext() if message is None else pytest.raises(PipelineError, match=message):
        delayed(change(pipeline.read("events", source).with_watermark("ts", "1 day")), "delayed").write("out", SINK)
        analyse(pipeline.graph(), spark)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("CAST(ts AS string)", "is a string, not a timestamp"),
        ("id", "is a bigint, not a timestamp"),
        ("CAST(ts AS timestamp_ntz)", "without time zone"),
    ],
)
def test_event_time_must_be_a_timestamp(spark: SparkSession, expression: str, message: str) -> None:
    pipeline = Pipeline("typed")
    rows = pipeline.read("events", generator.source(ROWS)).with_columns(other=expression)
    rows.with_watermark("other", "1 second").write("out", SINK)
    with pytest.raises(PipelineError, match=rf"with_watermark\('other'\).*{message}"):
        analyse(pipeline.graph(), spark)


def test_missing_event_time_column_is_refused(spark: SparkSession) -> None:
    pipeline = Pipeline("missing")
    pipeline.read("events", generator.source(ROWS)).with_watermark("other_time", "1 second").write("out", SINK)
    with pytest.raises(PipelineError, match="there is no column 'other_time'"):
        analyse(pipeline.graph(), spark)


def orders_of(folder: Path, **configuration: Any) -> ExecutionOrders:
    return ExecutionOrders(
        application="bids",
        execution="one",
        attempt=1,
        artifact="a" * 64,
        configuration=Configuration(state_backend="heap", epoch_interval_seconds=0, **configuration),
        store=str(folder / "store"),
        cache_directory=str(folder / "cache"),
        available_now=True,
    )


def test_counts_are_exact_when_stages_are_computed_again(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks of the last stage delete all shuffled data before other tasks have read theirs. Spark runs the two
    stages below again, and the tasks that failed because of it. Rows that were observed repeatedly are counted once."""
    armed, lost = tmp_path / "armed", tmp_path / "lost"

    def losing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if armed.exists() and not lost.exists():
            lost.touch()
            for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for file in Path(folder).glob("*/shuffle_*"):
                    file.unlink()

    pipeline = Pipeline("recomputed")
    events = pipeline.read("events", generator.source(ROWS)).with_watermark("ts", "0 seconds")
    second = delayed(delayed(events, "first"), "second")
    second.map_arrow(losing, "id bigint, ts timestamp").write("out", console.sink())
    with Harness(pipeline, spark) as test:
        test.restart(parallelism=3)
        test.epoch(at=NOON, events=rows(0, 20))
        test.epoch()
        armed.touch()
        test.epoch(events=rows(*[10.0] * 50, None, None, 21, 22, first=10))
        assert lost.exists()
        assert test.counts.late_rows == {"first": 50} and test.counts.rejected_rows == {"ts": 2}
        lost.unlink()
        test.spark.conf.set(ALL_ATTEMPTS_OBSERVED, "true")
        try:
            with pytest.raises(EpochAborted, match=r"'first' must return exactly one handle .* 0: 2"):
                test.epoch(events=rows(30, 31, first=100))
        finally:
            test.spark.conf.set(ALL_ATTEMPTS_OBSERVED, "false")


@pytest.mark.alternating(3)
def test_late_rows_of_a_join_are_separate_streams_with_their_columns(spark: SparkSession) -> None:
    pipeline = Pipeline("late")
    left = pipeline.read("left", generator.source({**ROWS, "v": "1"})).with_watermark("ts", "0 seconds", name="l")
    right = pipeline.read("right", generator.source({**ROWS, "v": "'a'"})).with_watermark("ts", "0 seconds", name="r")
    paired = left.join(right.drop("v"), on="id", within=("0 seconds", "1 second"), how="left_semi", name="paired")
    paired.write("paired", console.sink())
    paired.late.write("both", console.sink())
    alone = left.join(right, on="id", within=("0 seconds", "1 second"), how="left_anti", name="alone")
    alone.left_late.write("left_late", console.sink())
    alone.right_late.where("v = 'b'").write("right_late", console.sink())
    versions = left.join(
        right.select("id", "ts AS at").with_watermark("at", "0 seconds").latest("id", order_by="at"),
        on="id",
        as_of="ts",
        name="versions",
    )
    versions.right_late.write("versions_late", console.sink())
    with Harness(pipeline, spark) as test:
        test.epoch(at=NOON, left=[(1, at(10), 1)], right=[(1, at(10), "a")])
        test.epoch()
        shown = test.epoch(left=[(2, at(5), 2), (3, at(10), 3)], right=[(4, at(4), "b"), (5, at(4), "c")])
        assert test.counts.late_rows == {"paired": 3, "alone": 3, "versions": 3}
    assert shown["left_late"].to_pylist() == [{"id": 2, "ts": at(5), "v": 2}]
    assert shown["right_late"].to_pylist() == [{"id": 4, "ts": at(4), "v": "b"}]
    assert sorted(shown["both"].column("id").to_pylist()) == [2, 4, 5] and "v" in shown["both"].column_names
    assert sorted(shown["versions_late"].to_pylist(), key=str) == [{"id": 4, "at": at(4)}, {"id": 5, "at": at(4)}]

    alone.late.write("refused", console.sink())
    with pytest.raises(PipelineError, match="column 'v' is int in one and string in the other"):
        analyse(pipeline.graph(), spark)
    with pytest.raises(PipelineError, match="left_late: only a join of two streams has it"):
        left.key_by("id").distinct("d").left_late  # noqa: B018
