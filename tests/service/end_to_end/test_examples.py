"""The examples: flights in the author's harness, and the complete demo."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing import Harness
from examples.flights import batch, pipeline
from examples.sdg import logistic_rounds, word_count
from tests.service.end_to_end.blocks import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

DAYS = 9
LATE_MINUTES = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    from examples.flights import data  # loads all flights, which only the worker of these tests needs

    folder = tmp_path_factory.mktemp("flights")
    data.write_airports(folder / "airports.parquet")
    return [data.write_day(folder / "days", day, flights) for day, flights in data.flights_by_day()[:DAYS]]


@pytest.fixture
def harness(files: list[Path], spark: SparkSession, tmp_path: Path) -> Iterator[Harness]:
    parameters = pipeline.Parameters(
        flights=str(files[0].parent),
        airports=str(files[0].parents[1] / "airports.parquet"),
        output=str(tmp_path),
        late_minutes=LATE_MINUTES,
    )
    with Harness(pipeline.build(parameters), spark) as test:
        yield test


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.alternating(2)
def test_flights_equal_the_batch_result_after_restarts(
    harness: Harness, files: list[Path], spark: SparkSession
) -> None:
    written: list[DataFrame] = []
    for number in range(0, DAYS, 3):
        days = spark.read.schema(pipeline.SCHEMA).json([str(file) for file in files[number : number + 3]])
        outputs = harness.epoch(flights=days)
        written.append(spark.createDataFrame(outputs["alerts"].to_pandas(), pipeline.Streaks.output))
        harness.restart()

    flights = batch.read_flights(spark, str(files[0].parent))
    streaks = batch.streaks(flights, batch.late_after(LATE_MINUTES))
    alerts = written[0].union(written[1]).union(written[2])
    assert alerts.count() > 10
    assert rows(alerts.selectExpr("tail", "late_in_a_row")) == rows(
        batch.alerts(streaks).selectExpr("tail", "late_in_a_row")
    )
    expected = {
        (row.origin, row.destination): (row.flights, row.total_delay) for row in batch.delays(flights).collect()
    }
    state = {
        (row["origin"], row["destination"]): (row["flights"], row["total_delay"])
        for row in harness.state("delays").to_pylist()
    }
    assert state == expected


@pytest.mark.long
@pytest.mark.timeout(900)
def test_demo_succeeds_and_stops_all_processes() -> None:
    """With ``--keep``, which adds a chapter before the end."""
    shown = ""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.flights.demo", "--keep"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            shown += line
            if "Ctrl-C stops everything" in line:
                demo.send_signal(signal.SIGINT)
    assert demo.returncode == 0, shown[-8000:]
    assert "attempt 2 continues after epoch" in shown
    assert shown.count("rows, equal") == 7
    links = [line.strip() for line in shown.splitlines() if "/console/" in line]
    assert [link.partition("/console/")[2].partition("#code=epc_")[0] for link in links] == [
        "applications/flights",
        "applications/flights/lineage",
    ]
    assert "all processes stopped" in shown


@pytest.mark.long
@pytest.mark.parametrize("window", [10_000, 1_000, 100])
def test_words_are_counted_in_windows_of_the_requested_size(window: int, spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(window)
    parameters = word_count.Parameters(input=str(tmp_path), output=str(tmp_path), window=window)
    lines = [
        {"line": " ".join(chance.choices(("to", "be", "or", "not"), k=6)), "at": chance.randrange(25_000)}
        for _ in range(200)
    ]
    counts = Counter((word, line["at"] // window * window) for line in lines for word in line["line"].split())
    asked = [*counts, ("never", 0), ("be", 30_000)]
    with Harness(word_count.build(parameters), spark) as test:
        test.epoch(lines=lines[:120])
        test.restart(parallelism=3)
        test.epoch(lines=lines[120:])
        outputs = test.epoch(asked=[{"word": word, "start": start, "at": 25_000} for word, start in asked])
    found = {(row["word"], row["start"]): row["value"] for row in outputs["counts"].to_pylist()}
    assert found == {call: counts[call] for call in asked}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_logistic_regression_converges_to_scikit_learn(spark: SparkSession, tmp_path: Path) -> None:
    """Restarted between rounds; the weights differ by less than 1e-4."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    chance = np.random.default_rng(3)
    features = np.column_stack([np.ones(80), chance.normal(size=(80, 2))])
    labels = (chance.random(80) < 1 / (1 + np.exp(-features @ [0.3, 1.0, -0.8]))).astype(int)
    expected = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(features, labels).coef_[0]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    examples = [
        {"at": at, "example": number, "features": {"indices": [0, 1, 2], "values": row}, "label": label}
        for number, (row, label) in enumerate(zip(features.tolist(), labels.tolist(), strict=True))
    ]
    rate = float(4 / (np.linalg.eigvalsh(features.T @ features)[-1] + 4))
    parameters = logistic_rounds.Parameters(input=str(tmp_path), output=str(tmp_path))
    with Harness(logistic_rounds.build(parameters), spark) as test:
        test.epoch(examples=examples)
        test.epoch(asked=[{"at": at, "rate": rate, "penalty": 1.0}])
        assert test.in_flight == {"rounds": 1}
        test.restart()
        outputs = [rows for epoch in test.settle() for rows in epoch["weights"].to_pylist()]
        assert not test.in_flight
    (found,) = outputs
    assert found["error"] is None and 5 < found["round"] < logistic_rounds.MAX_ROUNDS
    assert found["weights"]["indices"] == [0, 1, 2]
    assert found["weights"]["values"] == pytest.approx(expected.tolist(), abs=1e-4)
