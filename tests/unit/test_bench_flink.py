"""Flink in the benchmark: rates from the progress of a job, net results of changes, the section of RESULTS.md."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructType, TimestampType

from benchmarks.flink import answers, queries, runner
from benchmarks.flink.page import (
    BLOCK,
    COMPARISON,
    HEAP,
    OURS,
    QUERIES,
    ROCKSDB,
    STREAMING,
    cells,
    compared,
    section,
    verdicts,
)
from benchmarks.nexmark_results import Measured, Run
from benchmarks.report import write_block

PARAMETERS = {"events": 1000, "epochs": 20, "rounds": 2, "warm": 10}


def test_the_rate_is_that_of_the_events_after_the_first() -> None:
    progress = runner.Progress(((10.0, 0), (12.0, 400), (14.0, 800), (15.0, 1000)), 16.0)
    assert progress.rate(600, 1000) == pytest.approx(400 / (16.0 - 13.0))
    assert progress.rate(400, 1000) == pytest.approx(600 / (16.0 - 12.0))
    late = runner.Progress(((10.0, 0),), 20.0)  # nothing was seen between the start and the end
    assert late.rate(500, 1000) == pytest.approx(500 / (20.0 - 15.0))
    with pytest.raises(ValueError, match="too small"):
        runner.Progress(((10.0, 700),), 20.0).rate(500, 1000)


def test_the_files_of_each_reader_are_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for number in range(5):
        (tmp_path / "input" / f"{number:05}.json").write_text(f"{number}\n")
    runner.write_input(tmp_path / "input", tmp_path / "joined")
    assert [file.read_text() for file in sorted((tmp_path / "joined").iterdir())] == ["0\n2\n4\n", "1\n3\n"]


def test_the_result_is_the_net_of_all_changes(tmp_path: Path) -> None:
    schema = StructType().add("category", LongType()).add("final", LongType())
    first, second = {"category": 1, "final": 5}, {"category": 1, "final": 7}
    changes = [
        {"before": None, "after": first, "op": "c"},
        {"before": first, "after": None, "op": "d"},
        {"before": None, "after": second, "op": "c"},
    ]
    (tmp_path / "part-0").write_text("\n".join(map(json.dumps, changes)) + "\n")
    assert answers.result("q4", tmp_path, schema) == Counter({(1, 7): 1})
    (tmp_path / "part-1").write_text(json.dumps({"before": first, "after": None, "op": "d"}) + "\n")
    with pytest.raises(ValueError, match="had not written"):
        answers.result("q4", tmp_path, schema)


def test_values_have_the_types_of_the_oracle(tmp_path: Path) -> None:
    schema = StructType().add("price", DecimalType(23, 3)).add("at", TimestampType()).add("extra", StringType())
    lines = [
        '{"price": 1.5, "at": "2015-07-15T00:00:00.25Z", "extra": "a"}',
        '{"price": 2, "at": "2015-07-15T00:00:10"}',
    ]
    (tmp_path / "part-0").write_text("\n".join(lines) + "\n")
    (tmp_path / ".part-1.inprogress").write_text("not committed")
    at = datetime(2015, 7, 15, tzinfo=UTC)
    assert answers.result("q1", tmp_path, schema) == Counter(
        [(Decimal("1.500"), at.replace(microsecond=250_000), "a"), (Decimal("2.000"), at.replace(second=10), None)]
    )


def test_the_section_states_medians_failures_and_what_is_not_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run.json", PARAMETERS, {"cores": "2"}, "2026-11-29")
    run.add(Measured("q1", {OURS: [10.0, 30.0], ROCKSDB: [20.0, 20.0], HEAP: [40.0, 40.0]}))
    run.add(Measured("q5", {OURS: [30.0, 50.0], ROCKSDB: [20.0, 20.0]}, {HEAP: "out of memory"}))
    assert cells(run.measured["q1"])[5:] == ("0.50", "1.50", "0.25", "0.75")
    rocksdb, heap = verdicts(run)
    assert "RocksDB 1.50, at least 1: reached; of the stateful queries 2.00; slower than Flink: none" in rocksdb
    assert heap.endswith("Flink, heap 0.50; slower than Flink: q1")
    text = section(run, runner.VERSION, runner.described(), "charts/nexmark-flink.svg")
    assert "- q5, Flink, heap: out of memory" in text and "| Flink | 2.3.0 |" in text
    assert "first 10,000" in text and "20,000 events in time order" in text
    assert f"- q13, in Flink: {queries.NOT_RUN['q13']}" in text
    assert "Not measured in this run: q0, q2" in text and "q13" not in QUERIES


def test_the_page_of_comparisons_has_a_place_for_the_table(tmp_path: Path) -> None:
    run = Run(tmp_path / "run.json", PARAMETERS, {"cores": "2"}, "2026-11-29")
    run.add(Measured("q1", {OURS: [10.0, 30.0], ROCKSDB: [20.0, 20.0], HEAP: [40.0, 40.0], STREAMING: [10.0]}))
    run.add(Measured("q4", {OURS: [10.0], ROCKSDB: [40.0]}))
    page = tmp_path / "page.md"
    page.write_text(COMPARISON.read_text())
    write_block(page, BLOCK, compared(run))
    text = page.read_text()
    assert "| q1 | 1.00 | 1.00 | 0.50 |" in text and "| q4 |  | 0.25 |  |" in text
    assert "- Flink, RocksDB: q4\n- Flink, heap: q1\n" in text and "RocksDB: none" in text
    assert text.startswith(COMPARISON.read_text().partition("<!--")[0])


def test_the_pinned_version_is_the_one_that_is_reported() -> None:
    lock = Path(runner.__file__).with_name("requirements.lock").read_text().split()
    assert f"apache-flink=={runner.VERSION}" in lock
