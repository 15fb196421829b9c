"""``make figures``: charts like those of the SDG paper's section 6, each measured in a process of its own.

python -m benchmarks.figures                        all, and their section of RESULTS.md
python -m benchmarks.figures state-size             some, printed only
python -m benchmarks.figures --quick                all in their smallest size, to see that they work; printed only
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import charts
from benchmarks.machine import describe
from benchmarks.report import write_section
from benchmarks.sdg import checkpoints, key_value, recovery, windows
from benchmarks.sdg.figure import Figure

FIGURES: Mapping[str, Callable[[Path, bool], Figure]] = {
    "read-write-ratio": key_value.read_write_ratio,
    "state-size": key_value.state_size,
    "windows": windows.windows,
    "recovery": recovery.recovery,
    "checkpoints": checkpoints.checkpoints,
}
LIMIT_SECONDS = 900

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"some of {', '.join(FIGURES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="the smallest size, to see that it works; printed only")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that measures one figure
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if unknown := set(options.figures) - set(FIGURES):
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    if options.alone:
        folder = Path(options.alone)
        figure = FIGURES[options.figures[0]](folder / "work", options.quick)
        (folder / "figure.json").write_text(json.dumps(figure.encode()))
        return 0
    chosen = options.figures or list(FIGURES)
    machine = describe()
    figures = [found for name in chosen if (found := measured(name, options.quick)) is not None]
    for figure in figures:
        console.print(_table(figure))
    if len(figures) < len(chosen):
        return 1
    if not options.figures and not options.quick:
        write_section("figures", markdown(figures, [draw(figure) for figure in figures], machine))
    return 0


def measured(name: str, quick: bool) -> Figure | None:
    """In a fresh JVM, nothing warm from the figure before; ``None`` and a message where that has failed."""
    folder = Path(tempfile.mkdtemp(prefix=f"epochal-figures-{name}-"))
    command = [sys.executable, "-m", "benchmarks.figures", name, "--alone", str(folder), *(["--quick"] * quick)]
    started = time.monotonic()
    try:
        with (folder / "log").open("wb") as log, console.status(f"[dim]{name}"):
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                code: int | None = process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                process.terminate()  # it then stops whatever it has started
                process.wait()
        if code != 0:
            console.print(f"[red]{name} {'failed' if code else f'took longer than {LIMIT_SECONDS} s'}[/]")
            console.print((folder / "log").read_text(errors="replace")[-3000:], markup=False)
            return None
        console.print(f"{name} [dim]{time.monotonic() - started:.0f} s")
        return Figure.decode(json.loads((folder / "figure.json").read_text()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def draw(figure: Figure) -> Path:
    """The chart's file. Needs the extra ``figures``."""
    panels = {panel.y: panel.series for panel in figure.panels}
    return charts.line_panels(figure.name, figure.title, figure.x, panels, logarithmic=figure.logarithmic)


def markdown(figures: Sequence[Figure], drawn: Sequence[Path], described: Mapping[str, str]) -> str:
    """The section of the page: each figure's chart, and its numbers."""
    parts = []
    for figure, chart in zip(figures, drawn, strict=True):
        header, *rows = _lines(figure)
        table = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
        table.insert(1, "|" + "---:|" * len(header))
        parts.append(
            f"### {figure.title}\n\n{figure.how}\n\n![{figure.title}](charts/{chart.name})\n\n{chr(10).join(table)}"
        )
    machine = "\n".join(f"| {name} | {value} |" for name, value in described.items())
    return f"""## Figures of the SDG paper

Written by `make figures` on {datetime.now(UTC):%Y-%m-%d}: what section 6 of the paper measures, on one machine and
with epochs. A call is answered when its epoch is committed: it waits for the rest of the epoch in which it came, and
for the next one.

{chr(10).join(f"{part}{chr(10)}" for part in parts)}
| | |
|---|---|
{machine}"""


def _table(figure: Figure) -> Table:
    header, *rows = _lines(figure)
    table = Table(box=None, header_style="dim", padding=(0, 2), title=figure.title, title_justify="left")
    for name in header:
        table.add_column(name, justify="right")
    for cells in rows:
        table.add_row(*cells)
    return table


def _lines(figure: Figure) -> Iterator[list[str]]:
    """The header, then a line for each x."""
    columns = [
        (f"{label} ({panel.y})", dict(points)) for panel in figure.panels for label, points in panel.series.items()
    ]
    yield [figure.x, *(name for name, _ in columns)]
    for x in sorted({x for _, points in columns for x in points}):
        yield [f"{x:,g}", *(_number(points[x]) if x in points else "" for _, points in columns)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
