"""Output of figures: charts, tables of their numbers, and parts of ``RESULTS.md``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from benchmarks import charts
from benchmarks.figure import Figure, Moment, Points


def draw(figure: Figure, folder: Path) -> Path:
    """Draw the chart into ``folder`` and return its path. Requires the extra ``figures``."""
    return charts.line_panels(
        folder / f"{figure.name}.svg",
        figure.title,
        figure.x,
        {panel.y: panel.series for panel in figure.panels},
        logarithmic=figure.logarithmic,
        moments=[(moment.x, moment.what) for moment in figure.moments],
    )


def markdown(figure: Figure, chart: Path, measured: str) -> str:
    """Part of the page for a figure. ``measured``: sentence about date and machine."""
    header, *rows = lines(figure)
    table = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    table.insert(1, "|" + "---:|" * len(header))
    return "\n\n".join(
        [
            f"### {figure.title}",
            figure.how,
            f"![{figure.title}](charts/{chart.name})",
            "\n".join(table),
            measured,
        ]
    )


def printed(figure: Figure) -> Table:
    header, *rows = lines(figure)
    table = Table(box=None, header_style="dim", padding=(0, 2), title=figure.title, title_justify="left")
    for name in header:
        table.add_column(name, justify="right")
    for cells in rows:
        table.add_row(*cells)
    return table


def lines(figure: Figure) -> Iterator[list[str]]:
    """The header and a line for each x; over time, a line for the beginning and for each moment."""
    columns = [(f"{label} ({panel.y})", points) for panel in figure.panels for label, points in panel.series.items()]
    if figure.moments:
        yield [figure.x, "from then on", *(f"{name}, before the next" for name, _ in columns)]
        moments = [Moment(0.0, ""), *figure.moments]
        for moment, end in zip(moments, [*(each.x for each in figure.moments), float("inf")], strict=True):
            yield [f"{moment.x:.0f}", moment.what, *(_number(_latest(points, end)) for _, points in columns)]
    else:
        yield [figure.x, *(name for name, _ in columns)]
        for x in sorted({x for _, points in columns for x, _ in points}):
            yield [f"{x:,.10g}", *(_number(dict(points).get(x)) for _, points in columns)]


def _latest(points: Points, before: float) -> float | None:
    at = bisect_left(sorted(points), before, key=lambda point: point[0])
    return sorted(points)[at - 1][1] if at else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
