"""Cost of the first epochs of a driver by the options of its JVM: the flights of a year, in alternating processes.

python -m benchmarks.first_epochs                  cold, and trained as a spare driver is
python -m benchmarks.first_epochs --rounds 3 --options=-XX:+UseSerialGC --options=-XX:TieredStopAtLevel=1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.alone import run_alone
from benchmarks.cpu import cpu_seconds_of_tree
from benchmarks.engine import engine_session, run_rows
from epochal.contracts.configuration import Configuration
from epochal.driver.training import trained
from epochal.engine.class_archive import JAVA_OPTIONS
from examples.flights.data import write_airports
from examples.flights.feeder import Feeder
from examples.flights.pipeline import Parameters, build

DAYS_OF_AN_EPOCH = 10
LIMIT_SECONDS = 900
COLD, TRAINED = "cold", "trained"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_epochs", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--options", action="append", default=[], help="JVM options of a trained driver, in addition to none"
    )
    parser.add_argument("--alone", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.alone:
        folder, kind = chosen.alone
        measured = _measured(Path(folder), kind, " ".join(chosen.options))
        (Path(folder) / "result.json").write_text(json.dumps(measured))
        return 0
    variants = [(COLD, ""), (TRAINED, ""), *((TRAINED, options) for options in chosen.options)]
    runs: dict[tuple[str, str], list[list[float]]] = {variant: [] for variant in variants}
    for turn in range(chosen.rounds):
        for variant in variants if turn % 2 == 0 else reversed(variants):
            runs[variant].append(_in_process(*variant))
    Console(width=None if sys.stdout.isatty() else 120).print(_table(runs))
    return 0


def _in_process(kind: str, options: str) -> list[float]:
    folder = Path(tempfile.mkdtemp(prefix="epochal-bench-first-"))
    try:
        command = [sys.executable, "-m", "benchmarks.first_epochs", "--alone", str(folder), kind]
        command += [f"--options={options}"] if options else []
        run_alone(command, folder / "log", LIMIT_SECONDS)
        return list(map(float, json.loads((folder / "result.json").read_text())))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(folder: Path, kind: str, options: str) -> list[float]:
    """Seconds and CPU seconds until the driver is ready; seconds of the first epochs; CPU seconds of all epochs."""
    feeder = Feeder(folder / "flights")
    feeder.feed(date(2013, 12, 31))
    write_airports(folder / "airports.parquet")
    configuration = Configuration(epoch_interval_seconds=0, spark={JAVA_OPTIONS: options} if options else {})
    used, began = cpu_seconds_of_tree(os.getpid()), time.monotonic()
    with engine_session(configuration) as spark:
        if kind == TRAINED:
            for _ in trained(spark):
                pass
        ready, seconds = cpu_seconds_of_tree(os.getpid()), time.monotonic() - began
        parameters = Parameters(
            flights=str(feeder.folder),
            airports=str(folder / "airports.parquet"),
            output=str(folder / "output"),
            max_files=DAYS_OF_AN_EPOCH,
        )
        rows = sum(len(file.read_text().splitlines()) for file in feeder.folder.iterdir())
        records = run_rows(build(parameters), spark, folder / "epochal", configuration, rows)
        everything = cpu_seconds_of_tree(os.getpid())
    took = [(record.prepared_at - record.started_at).total_seconds() for record in records if record.prepared_at]
    return [seconds, ready - used, *took[:3], median(took[-10:]), everything - ready]


def _table(runs: dict[tuple[str, str], list[list[float]]]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    names = ("ready, s", "its CPU, s", "epoch 1, s", "2", "3", "last 10, median", "CPU of all epochs, s")
    for name in ("driver", *names):
        table.add_column(name, justify="left" if name == "driver" else "right")
    for (kind, options), measured in runs.items():
        columns = zip(*measured, strict=True)
        table.add_row(f"{kind} {options}".strip(), *(f"{median(column):.2f}" for column in columns))
    return table


if __name__ == "__main__":
    sys.exit(main())
