"""The figures of ``make figures``: each measures, in its smallest size; what is drawn and written has its numbers."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import figures
from benchmarks.engine import EpochTime
from benchmarks.sdg.figure import Figure, Panel, throughput_and_latency

FIGURE = Figure(
    "sdg-try",
    "A try",
    "keys",
    True,
    [Panel("calls/s", {"throughput": [(1000.0, 5000.0), (10.0, 7000.0)]}), Panel("ms", {"median": [(10.0, 12.0)]})],
    "Two sizes.",
)


def test_a_figure_goes_through_json() -> None:
    assert Figure.decode(json.loads(json.dumps(FIGURE.encode()))) == FIGURE


def test_throughput_is_of_the_median_epoch() -> None:
    rate, latency = throughput_and_latency({5.0: [EpochTime(100, seconds) for seconds in (0.1, 0.2, 1.0)]})
    assert rate.series == {"throughput": [(5.0, pytest.approx(500))]}
    assert latency.series == {"median": [(5.0, 200)], "95th percentile": [(5.0, 1000)]}


def test_the_section_has_each_chart_and_its_numbers() -> None:
    text = figures.markdown([FIGURE], [figures.charts.FOLDER / "sdg-try.svg"], {"cores": "2"})
    assert "![A try](charts/sdg-try.svg)" in text
    assert (
        "| keys | throughput (calls/s) | median (ms) |\n|---:|---:|---:|\n| 10 | 7,000 | 12 |\n| 1,000 | 5,000 |  |"
        in text
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(figures.FIGURES))
def test_each_figure_is_measured(name: str) -> None:
    found = figures.measured(name, quick=True)
    assert found is not None, "what it said is above"
    values = [value for panel in found.panels for points in panel.series.values() for _, value in points]
    assert values and all(math.isfinite(value) and value > 0 for value in values)
