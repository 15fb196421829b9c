"""Charts of measured series, as SVG files in ``charts``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("charts")

Points = Sequence[tuple[float, float]]


def line_chart(
    name: str, title: str, x: str, y: str, series: Mapping[str, Points], *, logarithmic: bool = True
) -> Path:
    """Draw one line for each series into ``charts/<name>.svg``. ``x`` and ``y`` label the axes; both start at 0.

    ``logarithmic``: use a logarithmic x axis, which starts at its least value. Requires the extra ``figures``.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), layout="constrained")
    _draw_lines(axes, series, logarithmic, "o")
    axes.set(title=title, xlabel=x, ylabel=y)
    return _saved(pyplot, figure, FOLDER / f"{name}.svg")


def line_panels(
    file: Path,
    title: str,
    x: str,
    panels: Mapping[str, Mapping[str, Points]],
    *,
    logarithmic: bool,
    moments: Sequence[tuple[float, str]] = (),
) -> Path:
    """Draw panels one above the other over one x axis, as :func:`line_chart` does; ``panels``: series by y label.

    ``moments``: texts at positions of the x axis, in order. They stand above the panels, with a vertical line through
    all of them. Such a chart is over time, and its points have no marks.
    """
    pyplot = _pyplot()
    heights = [*([0.24 * len(moments) + 0.1] if moments else []), *[2.4] * len(panels)]
    figure, grid = pyplot.subplots(
        len(heights),
        sharex=True,
        squeeze=False,
        figsize=(7.2, sum(heights) + 0.2 * len(panels) + 0.6),
        height_ratios=heights,
        layout="constrained",
    )
    rows = list(grid[:, 0])
    for axes, (y, series) in zip(rows[-len(panels) :], panels.items(), strict=True):
        _draw_lines(axes, series, logarithmic, "" if moments else "o")
        axes.set(ylabel=y)
    if moments:
        _write_moments(rows, moments)
    figure.align_ylabels()
    rows[0].set(title=title)
    rows[-1].set(xlabel=x)
    return _saved(pyplot, figure, file)


def bar_chart(name: str, title: str, y: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> Path:
    """Draw the bars of each group side by side, one for each series, into ``charts/<name>.svg``.

    A value of ``nan`` has no bar. Requires the extra ``figures``.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(max(7.2, 0.5 * len(groups)), 4.0), layout="constrained")
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        axes.bar([place + (number + 0.5) * width - 0.4 for place in range(len(groups))], values, width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(title=title, ylabel=y)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(frameon=False)
    return _saved(pyplot, figure, FOLDER / f"{name}.svg")


def _draw_lines(axes: Any, series: Mapping[str, Points], logarithmic: bool, mark: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    for label, points in series.items():
        axes.plot(*zip(*sorted(points), strict=True), marker=mark, markersize=4, label=label)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xticks(sorted({value for points in series.values() for value, _ in points}))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_with_separators))
    axes.yaxis.set_major_formatter(FuncFormatter(_with_separators))
    # Room for the marks of the greatest values.
    axes.set_ylim(0, 1.08 * max((value for points in series.values() for _, value in points), default=1) or 1)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")


def _write_moments(rows: Sequence[Any], moments: Sequence[tuple[float, str]]) -> None:
    """Write each text in the first row, in its own line, on the side of its moment that has more room."""
    texts, middle = rows[0], sum(rows[-1].get_xlim()) / 2
    texts.set_axis_off()
    texts.set_ylim(len(moments), 0)
    for line, (at, what) in enumerate(moments):
        text = f" {what} "
        side = "left" if at < middle else "right"
        # The white background hides the lines of other moments behind the letters.
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0}
        texts.text(at, line + 0.5, text, ha=side, va="center", fontsize="small", bbox=ground)
        texts.plot([at, at], [line + 0.1, len(moments)], color="0.4", linewidth=0.9, linestyle="--")
        for axes in rows[1:]:
            axes.axvline(at, color="0.4", linewidth=0.9, linestyle="--")


def _with_separators(value: float, _: int) -> str:
    """Millions are written with M, because ticks are close to each other on a logarithmic axis."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:,.10g}M"
    return f"{value:,g}" if value < 1 else f"{value:,.10g}"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "epochal", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    return pyplot


def _saved(pyplot: Any, figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the date, equal numbers produce equal files.
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
