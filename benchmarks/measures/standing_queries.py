"""Time that 1, 10, 100 and 1,000 standing queries add to an epoch.

Every epoch reads 100,000 events from a Parquet file; the pipeline counts them and has standing queries. The queries
have different filters, groups and aggregates, as those of many analysts.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.result import Result, at_most, number
from epochal import Pipeline
from epochal.connectors import generator
from epochal.contracts.configuration import Configuration
from epochal.testing import Harness

ASKED = (0, 1, 10, 100, 1_000)
ROWS, EPOCHS, WARM = 100_000, 9, 3
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
COUNTRIES = [f"C{number:02}" for number in range(40)]
DEVICES = [f"device-{number:02}" for number in range(20)]
COLUMNS = {
    "user": "id",
    "device": "cast(id AS string)",
    "country": "cast(id AS string)",
    "amount": "cast(id AS double)",
    "items": "cast(id AS int)",
    "at": "timestamp_seconds(id)",
}


def run(folder: Path) -> list[Result]:
    files = [folder / f"{epoch}.parquet" for epoch in range(EPOCHS)]
    for epoch, file in enumerate(files):
        events(file, epoch, ROWS)
    found = seconds_of_epochs(files)
    added = {asked: found[asked] - found[0] for asked in ASKED[1:]}
    how = f"{ROWS:,} events an epoch; p50 of {EPOCHS - WARM} epochs, alternating"
    adds = ", ".join(f"{asked:,}: {seconds:.3f} s" for asked, seconds in added.items())
    return [
        number("an epoch without standing queries", found[0], "s", how),
        at_most("time added by 1,000 standing queries / by one", added[1_000] / added[1], 20, "times", adds, digits=1),
    ]


def pipeline() -> Pipeline:
    pipeline = Pipeline("standing")
    events = pipeline.read("events", generator.source(COLUMNS)).with_watermark("at", "1 second")
    events.key_by("country").aggregate("counts", rows="count(*)")
    events.standing_queries("queries", limit=1_000)
    return pipeline


def queries(count: int) -> list[str]:
    choose = random.Random(1)
    found = []
    for _ in range(count):
        where = f"country = '{choose.choice(COUNTRIES)}'"
        where += choose.choice(("", f" AND amount > {choose.randrange(100)}", f" AND items < {choose.randrange(10)}"))
        group = choose.choice(("device", "country", "device, country", ""))
        aggregates = choose.choice(("count(*) AS n", "count(*) AS n, avg(amount) AS mean", "sum(items) AS total"))
        selected = f"{group}, {aggregates}" if group else aggregates
        grouped = f" GROUP BY {group}" if group else ""
        window = choose.choice(("1 minute", "5 minutes", "1 hour"))
        found.append(f"SELECT {selected} WHERE {where}{grouped} WINDOW '{window}'")
    return found


def events(path: Path, epoch: int, rows: int) -> None:
    chance = np.random.default_rng(epoch)
    start = int((BEGIN + timedelta(seconds=10 * epoch)).timestamp() * 1_000_000)
    times = start + np.sort(chance.integers(0, 10_000_000, rows))
    table = pa.table(
        {
            "user": chance.integers(0, 10_000, rows),
            "device": pa.array(DEVICES).take(pa.array(chance.integers(0, len(DEVICES), rows))),
            "country": pa.array(COUNTRIES).take(pa.array(chance.integers(0, len(COUNTRIES), rows))),
            "amount": chance.random(rows) * 100,
            "items": pa.array(chance.integers(0, 10, rows), pa.int32()),
            "at": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        }
    )
    pq.write_table(table, path)


def seconds_of_epochs(files: list[Path]) -> dict[int, float]:
    """Median epoch after the first few, by number of queries. The sizes alternate, so that other load of the machine
    affects all alike."""
    configuration = Configuration(state_backend="heap", parallelism=2, epoch_interval_seconds=0)
    with ExitStack() as stack:
        runs = {asked: stack.enter_context(Harness(pipeline(), configuration=configuration)) for asked in ASKED}
        for asked, harness in runs.items():
            for query in queries(asked):
                harness.ask("queries", query)
        took: dict[int, list[float]] = {asked: [] for asked in ASKED}
        for file in files:
            for asked, harness in runs.items():
                frame = harness.spark.read.parquet(str(file))
                began = time.monotonic()
                harness.epoch(events=frame)
                took[asked].append(time.monotonic() - began)
    return {asked: statistics.median(seconds[WARM:]) for asked, seconds in took.items()}
