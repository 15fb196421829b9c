"""Figures: panels over one x axis, each with several lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.engine import EpochTime
from benchmarks.result import percentile

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """``series``: points of each line by its label. ``y``: label of the axis, with the unit."""

    y: str
    series: Mapping[str, Points]


@dataclass(frozen=True)
class Moment:
    """An event at ``x``."""

    x: float
    what: str


@dataclass(frozen=True)
class Figure:
    """``name``: name of the chart in ``charts/``. ``how``: sentences for the page about the measurement.

    ``moments``: events in order, if the x axis is time.
    """

    name: str
    title: str
    x: str
    logarithmic: bool
    panels: Sequence[Panel]
    how: str
    moments: Sequence[Moment] = ()

    def encode(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def decode(data: Mapping[str, Any]) -> Figure:
        """Decode the result of ``encode`` after JSON."""
        panels = [
            Panel(each["y"], {label: [(x, y) for x, y in points] for label, points in each["series"].items()})
            for each in data["panels"]
        ]
        moments = tuple(Moment(**each) for each in data["moments"])
        return Figure(**{**data, "panels": panels, "moments": moments})


def throughput_and_latency(times: Mapping[float, Sequence[EpochTime]]) -> list[Panel]:
    """Panels by x: rows a second of the median epoch; median and 95th percentile of the time of an epoch."""
    rates, middle, high = [], [], []
    for x, epochs in times.items():
        seconds = [epoch.seconds for epoch in epochs]
        rates.append((x, median(epoch.rows for epoch in epochs) / median(seconds)))
        middle.append((x, median(seconds) * 1000))
        high.append((x, percentile(seconds, 0.95) * 1000))
    return [
        Panel("calls/s", {"throughput": rates}),
        Panel("time of an epoch, ms", {"median": middle, "95th percentile": high}),
    ]
