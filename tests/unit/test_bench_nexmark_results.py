"""Results of Nexmark runs: kept in a file, continued, and judged by targets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.engine import between_begins
from benchmarks.nexmark_page import IN_MEMORY, LIMIT, MEASURED, OURS, ROCKSDB, STATEFUL, cells, section, verdicts
from benchmarks.nexmark_results import Measured, Run, begin, resume

PARAMETERS = {"events": 1000, "epochs": 12, "rounds": 2}


def run_with(folder: Path, *measured: Measured) -> Run:
    run = begin(folder / "run.json", PARAMETERS, {"cores": "2"})
    for each in measured:
        run.add(each)
    return run


def test_a_stopped_run_continues_with_what_it_has_measured(tmp_path: Path) -> None:
    first = Measured("q1", {OURS: [10.0, 20.0], LIMIT: [10.0, 10.0]})
    run_with(tmp_path, first)
    again = resume(tmp_path / "run.json", PARAMETERS)
    assert again.measured == {"q1": first} and again.machine == {"cores": "2"}
    again.add(Measured("q0", {OURS: [1.0]}, {ROCKSDB: "out of memory"}))
    assert [each.query for each in resume(again.file, PARAMETERS).among(MEASURED)] == ["q0", "q1"]
    with pytest.raises(ValueError, match="not with"):
        resume(tmp_path / "run.json", {**PARAMETERS, "events": 5})
    with pytest.raises(OSError):
        resume(tmp_path / "none.json", PARAMETERS)


def test_the_line_of_a_query_has_rates_and_the_worst_ratios() -> None:
    found = Measured("q5", {OURS: [3000.0, 1000.0], ROCKSDB: [1500.0, 250.0], IN_MEMORY: [1000.0], LIMIT: [3300.0] * 2})
    assert cells(found) == (
        *("q5", "2,000 (1,000)", "3,300 (1,650)", "875 (438)", "1,000 (500)"),
        *("2.00", "4.00", "3.00", "3.30"),
    )
    assert cells(Measured("q4", {OURS: [10.0], LIMIT: [20.0]})) == ("q4", "10 (5)", "20 (10)", *("",) * 5, "2.00")


def test_each_target_is_judged_by_the_worst_round(tmp_path: Path) -> None:
    run = run_with(
        tmp_path,
        Measured("q1", {OURS: [10.0, 10.0], LIMIT: [10.0, 12.0], ROCKSDB: [99.0]}),
        Measured("q2", {OURS: [10.0, 10.0], LIMIT: [10.9, 11.0]}),
        Measured("q5", {OURS: [13.0, 40.0], ROCKSDB: [10.0, 10.0], IN_MEMORY: [13.0]}),
        Measured("q7", {OURS: [12.9, 30.0], ROCKSDB: [10.0, 10.0], IN_MEMORY: [13.0]}),
        Measured("q8", {OURS: [30.0], ROCKSDB: [10.0]}),
    )
    rocksdb, in_memory, middle, bounded = verdicts(run)
    assert rocksdb.endswith("**not reached** q7 1.29")
    assert in_memory.endswith("**not reached** q7 0.99")
    assert middle.endswith("at least 2: 1.30, **not reached**")
    assert bounded.endswith("**not reached** q1 1.20")
    run.add(Measured("q7", {OURS: [20.0], ROCKSDB: [10.0], IN_MEMORY: [13.0]}))
    run.add(Measured("q1", {OURS: [10.0], LIMIT: [11.0]}))
    rocksdb, in_memory, middle, bounded = verdicts(run)
    assert rocksdb.endswith(": reached") and in_memory.endswith(": reached") and bounded.endswith(": reached")
    assert middle.endswith("at least 2: 2.00, reached")
    assert all("not measured" in line for line in verdicts(run_with(tmp_path)))


def test_the_section_lists_what_was_not_measured(tmp_path: Path) -> None:
    every = [Measured(query, {OURS: [10.0], LIMIT: [10.0]}) for query in MEASURED]
    assert "Not measured" not in section(run_with(tmp_path, *every), "chart.svg")
    text = section(run_with(tmp_path, *every[:-2]), "charts/nexmark.svg")
    assert "Not measured in this run: q21, q22." in text
    assert "![Events a second by query and engine](charts/nexmark.svg)" in text
    assert "- q4: " in text and "| q20 | 10 (5) |" in text
    assert {"q3", "q12", "q19"} < set(STATEFUL) and "q13" not in STATEFUL


def test_an_epoch_lasts_until_the_next_one_begins() -> None:
    begins = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in (0, 2, 5)]
    assert between_begins(begins, 1.5) == [2.0, 3.0, 1.5]
