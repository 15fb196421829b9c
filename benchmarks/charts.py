"""Charts of what was measured, as SVG beside ``RESULTS.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("charts")

Points = Sequence[tuple[float, float]]


def line_chart(
    name: str, title: str, x: str, y: str, series: Mapping[str, Points], *, logarithmic: bool = True
) -> Path:
    """Draw one line a series, ``x`` and ``y`` being the axes' labels, into ``charts/<name>.svg``; both start at 0.

    ``logarithmic``: whether the x axis is, which then starts at its least value. Needs the extra ``figures``.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), layout="constrained")
    _draw_lines(axes, series, logarithmic)
    axes.set(title=title, xlabel=x, ylabel=y)
    return _saved(pyplot, figure, name)


def line_panels(
    name: str, title: str, x: str, panels: Mapping[str, Mapping[str, Points]], *, logarithmic: bool
) -> Path:
    """Draw panels one above the other over one x axis, as :func:`line_chart` does; ``panels``: series by y label."""
    pyplot = _pyplot()
    size = (7.2, 2.6 * len(panels) + 0.6)
    figure, grid = pyplot.subplots(len(panels), sharex=True, squeeze=False, figsize=size, layout="constrained")
    for axes, (y, series) in zip(grid[:, 0], panels.items(), strict=True):
        _draw_lines(axes, series, logarithmic)
        axes.set(ylabel=y)
    grid[0, 0].set(title=title)
    grid[-1, 0].set(xlabel=x)
    return _saved(pyplot, figure, name)


def bar_chart(name: str, title: str, y: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> Path:
    """Draw the bars of each group side by side, one a series, into ``charts/<name>.svg``. Needs the extra ``figures``.

    A value of ``nan`` is no bar.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), layout="constrained")
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        axes.bar([place + (number + 0.5) * width - 0.4 for place in range(len(groups))], values, width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(title=title, ylabel=y)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(frameon=False)
    return _saved(pyplot, figure, name)


def _draw_lines(axes: Any, series: Mapping[str, Points], logarithmic: bool) -> None:
    from matplotlib.ticker import ScalarFormatter

    for label, points in series.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, label=label)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xticks(sorted({value for points in series.values() for value, _ in points}))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "epochal", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    return pyplot


def _saved(pyplot: Any, figure: Any, name: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.svg"
    # Without the date the same numbers give the same file.
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
