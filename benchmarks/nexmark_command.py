"""The command of both benchmarks of Nexmark: options, a process for each query, results that are kept as they come."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import charts
from benchmarks.machine import describe
from benchmarks.nexmark_page import WARM
from benchmarks.nexmark_results import Measured, Run, begin, new_file, printed, resume

NUMBERS = ("events", "epochs", "rounds")

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. ``module`` is run with ``python -m``; ``name`` is the beginning of the names of its files.

    ``write_input``: called with a folder, the events of an epoch and the number of epochs. ``measure``: called with a
    query, this folder, events, epochs and rounds. ``write``: writes the pages of a run. ``limit_seconds``: timeout for
    one query in ``rounds`` rounds. ``missing``: the reason why it cannot run, or ``None``.
    """

    module: str
    name: str
    description: str
    queries: Sequence[str]
    events: int
    epochs: int
    rounds: int
    header: Sequence[str]
    cells: Callable[[Measured], Sequence[str]]
    write_input: Callable[[Path, int, int], None]
    measure: Callable[[str, Path, int, int, int], Measured]
    write: Callable[[Run], None]
    limit_seconds: float
    missing: Callable[[], str | None] = lambda: None

    def main(self) -> int:
        """Run the command with the arguments of the process. Returns its exit code."""
        parser = self._parser()
        options = parser.parse_args()
        if unknown := set(options.queries) - set(self.queries):
            parser.error(f"unknown query {', '.join(sorted(unknown))}; known queries: {', '.join(self.queries)}")
        if options.epochs <= WARM:
            parser.error(f"--epochs must be above {WARM}")
        numbers = {name: int(getattr(options, name)) for name in NUMBERS}
        if options.alone:
            folder = Path(options.alone)
            found = self.measure(options.queries[0], folder, *numbers.values())
            (folder / "measured.json").write_text(json.dumps(asdict(found)))
            return 0
        if (reason := self.missing()) and not options.write:
            parser.error(reason)
        parameters = {**numbers, "warm": WARM}
        try:
            run = resume(options.resume, parameters) if options.resume else None
        except (OSError, ValueError) as error:
            parser.error(f"--resume: {error}")
        run = run or begin(new_file(self.name), parameters, describe())
        chosen = options.queries or self.queries
        missing = [query for query in chosen if query not in run.measured]
        if missing and not options.write:
            console.print(f"[dim]results are kept in {run.file}")
            self._measure(run, missing, numbers)
        measured = run.among(self.queries)
        console.print(printed(self.header, map(self.cells, measured)))
        if options.write or len(measured) == len(self.queries):
            self.write(run)
        return 0 if all(query in run.measured for query in chosen) else 1

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        known = ", ".join(self.queries)
        parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"some of {known}; default: all")
        parser.add_argument("--events", type=int, default=self.events, help="an epoch")
        counted = f"epochs of a run; the first {WARM} are not counted"
        parser.add_argument("--epochs", type=int, default=self.epochs, help=counted)
        parser.add_argument("--rounds", type=int, default=self.rounds)
        continued = "continue the run whose results are in this file"
        parser.add_argument("--resume", type=Path, metavar="FILE", help=continued)
        written = "write the section of RESULTS.md with what was measured"
        parser.add_argument("--write", action="store_true", help=written)
        parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that runs one query
        return parser

    def _measure(self, run: Run, queries: Sequence[str], numbers: dict[str, int]) -> None:
        """Measure the queries, and print and keep the result of each as it comes."""
        folder = Path(tempfile.mkdtemp(prefix=f"epochal-bench-{self.name}-"))
        try:
            self.write_input(folder, numbers["events"], numbers["epochs"])
            for query in queries:
                found = self._in_process(query, folder, numbers)
                if found is not None:
                    run.add(found)
                    console.print(printed(self.header, [self.cells(found)]))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _in_process(self, query: str, folder: Path, numbers: dict[str, int]) -> Measured | None:
        """Measure a query with a new JVM, so that earlier queries do not warm it up."""
        options = [f"--{name}={number}" for name, number in numbers.items()]
        command = [sys.executable, "-m", self.module, query, *options, "--alone", str(folder)]
        log, limit = folder / f"{query}.log", self.limit_seconds * max(1, numbers["rounds"] / self.rounds)
        started = time.monotonic()
        with log.open("wb") as output, console.status(f"[dim]{query}"):
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                process.terminate()
                process.wait()
        if code != 0:
            console.print(f"[red]{query} {'failed' if code else f'took longer than {limit:.0f} s'}[/]")
            console.print(log.read_text(errors="replace")[-3000:], markup=False)
            return None
        console.print(f"{query} [dim]{time.monotonic() - started:.0f} s")
        return Measured(**json.loads((folder / "measured.json").read_text()))


def drawn(run: Run, queries: Sequence[str], chart: str, title: str, engines: Sequence[str]) -> str:
    """Draw the rates of a run, and return the path of the chart below the folder of RESULTS.md."""
    measured = run.among(queries)
    rates = {name: [each.rate(name) for each in measured] for name in engines}
    file = charts.bar_chart(
        chart, f"{title}, {run.parameters['events']:,} events an epoch", "events/s", [e.query for e in measured], rates
    )
    return f"charts/{file.name}"
