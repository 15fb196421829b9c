"""The queries of ``make bench-nexmark-flink`` have the results of the oracles in Flink, with each state backend."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.flink import answers, queries, runner
from benchmarks.flink.page import QUERIES
from benchmarks.nexmark import schema
from benchmarks.nexmark_page import MEASURED
from epochal.connectors import nexmark
from epochal.connectors.nexmark.source import NexmarkSource
from examples.nexmark.oracles import answer

EVENTS, RATE, FILES = 6000, 100, 6
ON_ROCKSDB = ("q5", "q6", "q11", "q16", "q20")
NO_FLINK = runner.missing()


def test_every_query_is_run_or_listed() -> None:
    assert {*queries.QUERIES, *queries.NOT_RUN} == set(MEASURED)
    assert not set(queries.QUERIES) & set(queries.NOT_RUN)
    assert set(queries.COLUMNS) == set(queries.QUERIES) == set(QUERIES)
    assert set(queries.QUERIES) > queries.UPDATES


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(NO_FLINK is not None, reason=NO_FLINK or "")
@pytest.mark.parametrize(
    ("query", "state"),
    [(query, runner.HEAP) for query in QUERIES] + [(query, runner.ROCKSDB) for query in ON_ROCKSDB],
)
def test_flink_equals_the_oracle(spark: SparkSession, tmp_path: Path, query: str, state: str) -> None:
    folder = write_input(spark, tmp_path / "input")
    runner.write_input(folder, tmp_path / "joined")
    progress = runner.run(query, tmp_path / "joined", state, 0.5, tmp_path / "work")
    assert progress.samples[-1][1] <= EVENTS
    oracle = answer(spark.read.schema(schema()).json(str(folder)), query)
    got = answers.result(query, tmp_path / "work" / "output", oracle.schema)
    # Spark returns local times without a zone.
    expected = Counter(tuple(map(_in_utc, row)) for row in oracle.collect())
    if query == "q12":  # windows are those of the clock, and the last one is not output
        bidders: Counter[int] = Counter()
        for (bidder, number, *_), rows in got.items():
            bidders[bidder] += number * rows
        assert not bidders - Counter({bidder: number for bidder, number, *_ in expected})
        return
    assert got == expected


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def write_input(spark: SparkSession, folder: Path) -> Path:
    """Write the events of one minute around midnight in files with their slices, in the order of their names."""
    first = "2015-07-14T23:59:40Z"
    source = nexmark.source(events=EVENTS, events_per_second=RATE, first_event_at=first).make()
    assert isinstance(source, NexmarkSource)
    folder.mkdir()
    share = EVENTS // FILES
    for number in range(FILES):
        rows = source.rows(spark, number * share, (number + 1) * share)
        rows.coalesce(1).write.json(str(folder.parent / f"part-{number}"))
        (part,) = (folder.parent / f"part-{number}").glob("*.json")
        part.rename(folder / f"{number:05}.json")
    return folder
