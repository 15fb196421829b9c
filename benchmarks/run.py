"""``make bench``: run every measure in a separate process, one after the other, and write ``RESULTS.md``.

python -m benchmarks.run                    all
python -m benchmarks.run aggregate fork     some, printed only
python -m benchmarks.run tables --record    some, also written to a section that the next run of all removes
python -m benchmarks.run event_time --rounds 3
python -m benchmarks.run --descriptions     none: update the descriptions of baselines in RESULTS.md, keep the numbers
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
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.comparison.checkouts import commit_name
from benchmarks.descriptions import BENCH, DESCRIBED, baselines_described, snapshots_compared, updated
from benchmarks.machine import LOAD, describe
from benchmarks.report import RESULTS, read_section, remove_section, write_section, written_sections
from benchmarks.result import Result

MEASURES = (
    "aggregate",
    "process",
    "programs",
    "page_rank",
    "standing_queries",
    "event_time",
    "state_views",
    "state_epochs",
    "snapshot",
    "small_epoch",
    "planning",
    "abs_graph",
    "lookups",
    "query_nodes",
    "entries",
    "internal_calls",
    "many_applications",
    "warm_drivers",
    "fork",
    "rescale",
    "state_size",
    "restore",
    "compaction",
    "runs",
    "placement",
    "retention",
    "own_parallelism",
    "store_size",
    "backup",
    "past",
    "long_history",
    "dbms",
    "dbms_shards",
    "kafka",
    "guarantees",
    "hdfs",
    "tables",
)
IN_TURNS = ("dbms_shards", "event_time", "planning", "programs", "warm_drivers")
"""Measures with a configurable number of rounds."""
LIMIT_SECONDS = 1800

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"some of {', '.join(MEASURES)}; default: all")
    parser.add_argument("--rounds", type=int, help=f"number of rounds of {', '.join(IN_TURNS)}")
    parser.add_argument(
        "--descriptions", action="store_true", help="measure nothing; update the descriptions of the baselines"
    )
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that runs one measure
    parser.add_argument("--record", action="store_true", help="write the results of the chosen measures to RESULTS.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if options.descriptions:
        for command in written_sections() & DESCRIBED.keys():
            write_section(command, updated(read_section(command), DESCRIBED[command]))
        return 0
    if unknown := set(options.measures) - set(MEASURES):
        parser.error(f"unknown measure {', '.join(sorted(unknown))}; known measures: {', '.join(MEASURES)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.rounds is not None and options.measures and not set(options.measures) & set(IN_TURNS):
        parser.error(f"--rounds applies to {', '.join(IN_TURNS)} only")
    if options.alone:
        return _run_alone(options.measures[0], Path(options.alone), options.rounds)
    chosen = options.measures or list(MEASURES)
    machine, commit, began = describe(), commit_name(), time.monotonic()
    results, failed = [], []
    for name in chosen:
        started = time.monotonic()
        with console.status(f"[dim]{name}"):
            found = _run_in_process(name, options.rounds if name in IN_TURNS else None)
        if found is None:
            failed.append(name)
        else:
            results += found
            console.print(f"{name} [dim]{time.monotonic() - started:.0f} s")
    console.print(_table(results))
    if failed:
        console.print(f"[red]Not measured: {', '.join(failed)}[/]")
    if not options.measures and results:
        minutes = (time.monotonic() - began) / 60
        write_section("bench", _markdown(results, machine, failed, f"of {minutes:.0f} minutes, of commit {commit}"))
        remove_section("bench-chosen")
        console.print(
            f"Written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}."
        )
    if options.measures and options.record and results:
        write_section("bench-chosen", _chosen(results, machine, commit))
    return 1 if failed else 0


def _chosen(results: list[Result], machine: Mapping[str, str], commit: str) -> str:
    return f"""## Measures that are newer than the run of all

Written by `make bench MEASURES=".."` on {datetime.now(UTC):%Y-%m-%d}, of commit {commit}, in one run;
load before the run: {machine[LOAD]}.

| measure | measured | target | | how |
|---|---:|---:|---|---|
{_rows(results)}
"""


def _rows(results: list[Result]) -> str:
    return "\n".join(
        f"| {result.measure} | {result.measured} | {result.reach} | {result.verdict} | {result.how} |"
        for result in results
    )


def _run_in_process(name: str, rounds: int | None) -> list[Result] | None:
    """Run a measure in a new JVM, so that earlier measures do not warm it up."""
    folder = Path(tempfile.mkdtemp(prefix=f"epochal-bench-{name}-"))
    log = folder / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "benchmarks.run", name, "--alone", str(folder)]
        command += [] if rounds is None else [f"--rounds={rounds}"]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        if process.wait(LIMIT_SECONDS * (rounds or 1)):
            console.print(f"[red]{name} failed[/]")
            console.print(log.read_text(errors="replace")[-3000:], markup=False)
            return None
        return [Result(**item) for item in json.loads((folder / "results.json").read_text())]
    except subprocess.TimeoutExpired:
        console.print(f"[red]{name} took longer than {LIMIT_SECONDS * (rounds or 1)} s")
        return None
    finally:
        process.terminate()  # the process then stops its child processes
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _run_alone(name: str, folder: Path, rounds: int | None) -> int:
    more = {} if rounds is None else {"turns": rounds}
    results = import_module(f"benchmarks.measures.{name}").run(folder, **more)
    (folder / "results.json").write_text(json.dumps([result.encode() for result in results]))
    return 0


def _table(results: list[Result]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for name in ("measure", "measured", "reach", ""):
        table.add_column(name, justify="right" if name in ("measured", "reach") else "left")
    marks = {True: "[green]✓", False: "[red]✗", None: ""}
    for result in results:
        table.add_row(result.measure, result.measured, result.reach, marks[result.reached])
    return table


def _markdown(results: list[Result], described: Mapping[str, str], failed: list[str], run: str) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in described.items())
    rows = _rows(results)
    not_measured = f"\n**Not measured** (failed): {', '.join(failed)}.\n" if failed else ""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return f"""Written by `make bench` on {today}. All numbers are from one run on one machine,
{run}. Ratios depend less on the machine than seconds.
{not_measured}
| measure | measured | target | | how |
|---|---:|---:|---|---|
{rows}

## Baselines

{baselines_described(BENCH, today)}

{snapshots_compared(results)}## The machine

| | |
|---|---|
{machine}
"""


if __name__ == "__main__":
    sys.exit(main())
