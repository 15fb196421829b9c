"""Compares state and output of the streaming application with the batch results, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal.client.applications import ApplicationHandle
from examples.flights import batch

Row = tuple[Any, ...]
DELAYS = ("flights", "total_delay", "worst_delay", "average_delay")
ALERTS = "tail string, time timestamp, late_in_a_row int, since timestamp"
AVERAGES_AGREE_TO = 9  # decimal places; Spark computes averages differently from a sum divided by a count


@dataclass(frozen=True)
class Comparison:
    """Rows of the application and of the batch, as multisets."""

    label: str
    rows: int
    missing: Sequence[Row]
    surplus: Sequence[Row]

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus


@dataclass(frozen=True)
class Story:
    """An application and its limit for late flights, which can change to ``changed_to`` after a day."""

    application: ApplicationHandle
    output: str
    late_minutes: int
    changed_to: int | None = None
    after: date | None = None

    @property
    def late(self) -> Column:
        return batch.late_after(self.late_minutes, self.changed_to, self.after)


def compare_state(
    story: Story, flights: DataFrame, routes: Sequence[Mapping[str, str]], aircraft: Sequence[Mapping[str, str]]
) -> list[Comparison]:
    """Compare both state tables, through batch look-ups of all possible keys over HTTP."""
    delays, streaks = story.application.state("delays"), story.application.state("streaks.current")
    return [
        _compare(
            f"{story.application.name}: state of every route",
            _found(routes, delays.lookup(routes).values, DELAYS),
            batch.delays(flights).select("origin", "destination", *DELAYS).collect(),
        ),
        _compare(
            f"{story.application.name}: state of every aircraft",
            _found(aircraft, streaks.lookup(aircraft).values, ("late_in_a_row", "longest", "since")),
            batch.current_streaks(batch.streaks(flights, story.late)).collect(),
        ),
    ]


def compare_delays(story: Story, spark: SparkSession, flights: DataFrame, airports: DataFrame) -> Comparison:
    """Compare the latest row of each route in table ``delays``. Every epoch appends the changed routes."""
    columns = ["origin", "destination", "flights", "total_delay", "worst_delay", "average_delay", "airport"]
    written = spark.read.parquet(f"{story.output}/delays")
    latest = written.groupBy("origin", "destination").agg(
        F.max_by(F.struct(*columns[2:]), F.struct("epoch", "flights")).alias("row")
    )
    return _compare(
        f"{story.application.name}: table delays, newest rows",
        latest.select("origin", "destination", "row.*").collect(),
        batch.named_delays(flights, airports).select(*columns).collect(),
    )


def compare_alerts(story: Story, spark: SparkSession, flights: DataFrame, since: date | None = None) -> Comparison:
    """Compare all rows of table ``alerts`` as a multiset. A fork writes only the rows after ``since``."""
    written = spark.read.schema(ALERTS).json(f"{story.output}/alerts")
    columns = batch.ALERTS  # without the column epoch, which comes from folder names
    expected = batch.alerts(batch.streaks(flights, story.late))
    if since is not None:
        expected = expected.where(F.to_date("time") > F.lit(since))
    return _compare(
        f"{story.application.name}: table alerts, every row",
        written.select(*columns).collect(),
        expected.select(*columns).collect(),
    )


def _found(
    keys: Iterable[Mapping[str, str]], values: Iterable[Mapping[str, Any] | None], columns: Sequence[str]
) -> list[Row]:
    return [
        (*key.values(), *(value[column] for column in columns))
        for key, value in zip(keys, values, strict=True)
        if value is not None
    ]


def _compare(label: str, ours: Iterable[Sequence[Any]], theirs: Iterable[Sequence[Any]]) -> Comparison:
    surplus = [_plain(row) for row in ours]
    missing = []
    remaining: dict[Row, int] = {}
    for row in surplus:
        remaining[row] = remaining.get(row, 0) + 1
    expected = [_plain(row) for row in theirs]
    for row in expected:
        if remaining.get(row, 0):
            remaining[row] -= 1
        else:
            missing.append(row)
    return Comparison(label, len(expected), missing, [row for row, count in remaining.items() for _ in range(count)])


def _plain(row: Sequence[Any]) -> Row:
    return tuple(_plain_value(value) for value in row)


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.replace(tzinfo=UTC).isoformat()
    if isinstance(value, float):
        return round(value, AVERAGES_AGREE_TO)
    if isinstance(value, str) and value[:2] == "20" and "T" in value:
        return _plain_value(datetime.fromisoformat(value))
    return value
