"""The figures of ``make figures``: each is measured at its smallest size; charts and text have the measured numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import figures, page, scale
from benchmarks.engine import EpochTime
from benchmarks.figure import Figure, Moment, Panel, throughput_and_latency
from benchmarks.figure_runs import FigureRuns
from benchmarks.sdg.timeline import Count, Timeline, lag, rates
from epochal.contracts.catalog import Change, EpochRecord

FIGURE = Figure(
    "sdg-try",
    "A try",
    "keys",
    True,
    [Panel("calls/s", {"throughput": [(2000000.0, 5000.0), (10.0, 7000.0)]}), Panel("ms", {"median": [(10.0, 12.0)]})],
    "Two sizes.",
)
OVER_TIME = replace(FIGURE, x="time, s", moments=(Moment(5.0, "slower"), Moment(20.0, "faster")))


@pytest.mark.parametrize("figure", [FIGURE, OVER_TIME])
def test_figure_is_encoded_as_json(figure: Figure) -> None:
    assert Figure.decode(json.loads(json.dumps(figure.encode()))) == figure


def test_throughput_is_that_of_the_median_epoch() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    rate, latency = throughput_and_latency({5.0: [EpochTime(100, seconds, began) for seconds in (0.1, 0.2, 1.0)]})
    assert rate.series == {"throughput": [(5.0, pytest.approx(500))]}
    assert latency.series == {"median": [(5.0, 200)], "95th percentile": [(5.0, 1000)]}


def test_page_shows_the_chart_and_its_numbers() -> None:
    text = page.markdown(FIGURE, Path("charts/sdg-try.svg"), "Measured on a Monday.")
    assert "![A try](charts/sdg-try.svg)" in text and text.endswith("Measured on a Monday.")
    assert (
        "| keys | throughput (calls/s) | median (ms) |\n|---:|---:|---:|\n| 10 | 7,000 | 12 |\n| 2,000,000 | 5,000 |  |"
        in text
    )


def test_chart_over_time_has_a_row_for_each_event() -> None:
    assert list(page.lines(OVER_TIME)) == [
        ["time, s", "from then on", "throughput (calls/s), before the next", "median (ms), before the next"],
        ["0", "", "", ""],
        ["5", "slower", "7,000", "12"],
        ["20", "faster", "5,000", "12"],
    ]


def test_timeline_has_rates_lag_and_subtasks_by_elapsed_seconds() -> None:
    arrivals = [Count(1000 + second, 10 * (second + 1)) for second in range(30)]
    timeline = Timeline(
        arrivals,
        [
            committed(1, 1010, 1015, 50),
            committed(2, 1015, 1020, 150, Change(kind="rescale", detail={"parallelism": [1, 2]})),
        ],
        subtasks=1,
    )
    speed, behind, subtasks = timeline.panels()
    assert speed.series == {"processed": [(2.5, 10.0)], "arriving": [(2.5, 10.0)]}
    assert behind.series == {"age of the oldest row that waits": [(5.0, 10.0), (10.0, 0.0)]}
    assert subtasks.series == {"of the operator": [(0.0, 1), (5.0, 1), (5.0, 2), (10.0, 2)]}
    named = timeline.moments([Moment(1002.0, "a file"), Moment(1016.0, "named")])
    assert [(moment.x, moment.what) for moment in named] == [
        (-8.0, "a file"),
        (5.0, "2 subtasks instead of 1, by the autoscaler"),
        (6.0, "named"),
    ]


def test_lag_is_the_age_of_the_oldest_unprocessed_row() -> None:
    arrivals = [Count(1.0, 10), Count(2.0, 20), Count(3.0, 30)]
    assert [lag(arrivals, taken, 5.0) for taken in (0, 9, 10, 25, 30)] == [4.0, 4.0, 3.0, 2.0, 0.0]


def test_rates_assume_even_arrival_between_counts() -> None:
    assert rates([Count(0.0, 0), Count(10.0, 100), Count(15.0, 100)], 0.0, 15.1) == [
        (2.5, 10.0),
        (7.5, 10.0),
        (12.5, 0.0),
    ]


def committed(epoch: int, began: float, ended: float, rows: int, *changes: Change) -> EpochRecord:
    times = [datetime.fromtimestamp(at, UTC) for at in (began, ended)]
    return EpochRecord(
        branch="main",
        epoch=epoch,
        attempt=1,
        state="committed",
        rows_in=rows,
        changes=changes,
        started_at=times[0],
        committed_at=times[1],
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("runs", "name"),
    [
        *((figures.RUNS, name) for name in sorted({*figures.RUNS.figures} - {"straggler"})),
        *((scale.RUNS, name) for name in scale.RUNS.figures),
    ],
)
def test_each_figure_is_measured(runs: FigureRuns, name: str) -> None:
    """All but the figure over time, which waits for an application to catch up and so depends on the load of the
    machine."""
    found = runs.measured(name, quick=True)
    assert found is not None, "see its output above"
    series = [points for panel in found.panels for points in panel.series.values()]
    assert series and all(any(value > 0 for _, value in points) for points in series)
    assert all(math.isfinite(value) and value >= 0 for points in series for _, value in points)
