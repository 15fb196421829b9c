"""``make bench-object-store``: what an application waits for and requests when its snapshots are in S3.

python -m benchmarks.object_store                        all measures; writes RESULTS.md
python -m benchmarks.object_store epochs queries         some, printed only
python -m benchmarks.object_store outage --away 30       a shorter absence of the store; printed only
python -m benchmarks.object_store epochs --rounds 1      printed only

SeaweedFS as the S3 server, and a proxy that counts and delays requests, run on the same machine.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.alone import NotMeasured, run_alone
from benchmarks.comparison.checkouts import commit_name
from benchmarks.machine import describe
from benchmarks.object_store import epochs, outage, queries, requests
from benchmarks.report import write_section
from benchmarks.result import Result

LIMIT_SECONDS = 1800
FOUND = "results.json"
INTRODUCTION = """## Snapshots in S3

Written by `make bench-object-store`, which `make bench` includes. The store is SeaweedFS on this machine, behind a
proxy that counts requests and delays each of them. The sides of a comparison run alternately in one run."""

Measure = Callable[[Path], list[Result]]

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.object_store", description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"some of {', '.join(measures())}; default: all")
    parser.add_argument("--rounds", type=int, help="number of alternating rounds of epochs and queries")
    parser.add_argument("--away", type=float, help=f"seconds for which the store is away; default: {outage.SECONDS:g}")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that runs one measure
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    known = measures(options.rounds, options.away)
    if unknown := set(options.measures) - set(known):
        parser.error(f"unknown measure {', '.join(sorted(unknown))}; known measures: {', '.join(known)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.alone:
        results = known[options.measures[0]](Path(options.alone))
        (Path(options.alone) / FOUND).write_text(json.dumps([result.encode() for result in results]))
        return 0
    machine, commit = describe(), commit_name()
    passed_on = [f"--{name}={value}" for name in ("rounds", "away") if (value := getattr(options, name)) is not None]
    found, failed = _measured(options.measures or list(known), passed_on)
    console.print(_table(found))
    if failed:
        console.print(f"[red]Not measured: {', '.join(failed)}[/]")
    if found and not options.measures and not passed_on:
        write_section("bench-object-store", _markdown(found, failed, machine, commit))
    return 1 if failed else 0


def measures(rounds: int | None = None, away_seconds: float | None = None) -> Mapping[str, Measure]:
    return {
        "requests": requests.run,
        "epochs": partial(epochs.run, turns=rounds or epochs.TURNS),
        "queries": partial(queries.run, turns=rounds or queries.TURNS),
        "outage": partial(outage.run, seconds=outage.SECONDS if away_seconds is None else away_seconds),
    }


def _measured(names: Sequence[str], options: Sequence[str]) -> tuple[list[Result], list[str]]:
    """Results, and the names of measures that failed. Each measure runs in a new process."""
    found: list[Result] = []
    failed = []
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"epochal-bench-{name}-", ignore_cleanup_errors=True) as made:
            folder = Path(made)
            command = [sys.executable, "-m", "benchmarks.object_store", name, "--alone", made, *options]
            try:
                with console.status(f"[dim]{name}"):
                    run_alone(command, folder / "log", LIMIT_SECONDS)
            except NotMeasured as problem:
                console.print(f"{name} {problem}", style="red", markup=False)
                failed.append(name)
                continue
            found += [Result(**item) for item in json.loads((folder / FOUND).read_text())]
            console.print(f"{name} [dim]{time.monotonic() - began:.0f} s")
    return found, failed


def _table(results: Sequence[Result]) -> Table:
    table = Table("measure", "measured", "target", "", "how", box=None, header_style="dim", padding=(0, 2))
    for each in results:
        table.add_row(each.measure, each.measured, each.reach, each.verdict, each.how)
    return table


def _markdown(results: Sequence[Result], failed: Sequence[str], machine: Mapping[str, str], commit: str) -> str:
    rows = "\n".join(
        f"| {each.measure} | {each.measured} | {each.reach} | {each.verdict} | {each.how} |" for each in results
    )
    facts = "\n".join(f"| {name} | {value} |" for name, value in machine.items())
    not_measured = f"\n**Not measured** (failed): {', '.join(failed)}.\n" if failed else ""
    return f"""{INTRODUCTION}

Measured on {datetime.now(UTC):%Y-%m-%d}, of commit {commit}.
{not_measured}
| measure | measured | target | | how |
|---|---:|---:|---|---|
{rows}

| | |
|---|---|
{facts}
"""


if __name__ == "__main__":
    sys.exit(main())
