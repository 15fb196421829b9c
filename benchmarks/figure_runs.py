"""Figures of one command, each measured in a separate process and written to its part of ``RESULTS.md``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks import charts, page
from benchmarks.alone import NotMeasured, run_alone
from benchmarks.comparison.checkouts import commit_name
from benchmarks.figure import Figure
from benchmarks.machine import LOAD, describe
from benchmarks.report import RESULTS, write_part

Measure = Callable[[Path, bool], Figure]
"""Called with a working folder and whether to use the smallest size."""

FOUND = "figure.json"
COMMIT = "commit"

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class FigureRuns:
    """The figures of ``make COMMAND``. ``module``: run as ``python -m``; ``introduction``: begins the section."""

    command: str
    module: str
    figures: Mapping[str, Measure]
    introduction: str
    limit_seconds: float

    def main(self, description: str, arguments: Sequence[str] | None = None) -> int:
        """Run the command and return its exit code."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=description)
        parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"some of {', '.join(self.figures)}")
        parser.add_argument("--quick", action="store_true", help="measure the smallest size as a check; print only")
        parser.add_argument(
            "--into", type=Path, metavar="FOLDER", help="write page and charts to this folder, not to RESULTS.md"
        )
        parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)  # the folder of a process that measures one
        options = parser.parse_args(arguments)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        if unknown := set(options.figures) - set(self.figures):
            parser.error(f"unknown figure {', '.join(sorted(unknown))}; known figures: {', '.join(self.figures)}")
        if options.alone:
            figure = self.figures[options.figures[0]](options.alone / "work", options.quick)
            (options.alone / FOUND).write_text(json.dumps(figure.encode()))
            return 0
        if (options.into or not options.quick) and find_spec("matplotlib") is None:
            parser.error(f"charts need the extra figures; `make {self.command}` installs it")
        machine, failed = {**describe(), COMMIT: commit_name()}, []
        for name in options.figures or self.figures:
            found = self.measured(name, options.quick)
            if found is None:
                failed.append(name)
                continue
            console.print(page.printed(found))
            if options.into:
                options.into.mkdir(parents=True, exist_ok=True)
                self.write(name, found, machine, options.into / RESULTS.name, options.into / charts.FOLDER.name)
            elif not options.quick:
                self.write(name, found, machine)
        if failed:
            console.print(f"[red]Not measured: {', '.join(failed)}[/]")
        return 1 if failed else 0

    def measured(self, name: str, quick: bool) -> Figure | None:
        """Measure a figure in a new process. Prints a message and returns ``None`` if it fails."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"epochal-{self.command}-{name}-", ignore_cleanup_errors=True) as made:
            folder = Path(made)
            command = [sys.executable, "-m", self.module, name, "--alone", made, *(["--quick"] * quick)]
            try:
                with console.status(f"[dim]{name}"):
                    run_alone(command, folder / "log", self.limit_seconds)
            except NotMeasured as error:
                console.print(f"{name} {error}", style="red", markup=False)
                return None
            console.print(f"{name} [dim]{time.monotonic() - started:.0f} s")
            return Figure.decode(json.loads((folder / FOUND).read_text()))

    def write(
        self,
        name: str,
        figure: Figure,
        machine: Mapping[str, str],
        results: Path = RESULTS,
        folder: Path = charts.FOLDER,
    ) -> None:
        """Write the chart to ``folder`` and the figure's part of the page ``results``."""
        chart = page.draw(figure, folder)
        measured = f"Measured on {datetime.now(UTC):%Y-%m-%d}, {COMMIT} {machine[COMMIT]}; {LOAD}: {machine[LOAD]}."
        text = page.markdown(figure, chart, measured)
        write_part(self.command, name, text, list(self.figures), self.beginning(machine), results)

    def beginning(self, machine: Mapping[str, str]) -> str:
        """First part of the section: the introduction and the machine."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in machine.items() if name not in (LOAD, COMMIT))
        return f"{self.introduction}\n\n| | |\n|---|---|\n{rows}"
