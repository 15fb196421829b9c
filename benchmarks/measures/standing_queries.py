"""``python -m benchmarks.measures.standing_queries``: what 1, 10, 100 and 1,000 standing queries add to an epoch.

The same 100,000 events in every epoch, from a Parquet file; the pipeline counts them, and has standing queries beside.
The queries differ in what they filter, group and aggregate, as those of many analysts do.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import generator
from epochal.engine.settings import Configuration
from epochal.testing import Harness

ASKED = (0, 1, 10, 100, 1_000)
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
    """By the number of queries the median over the epochs after the first three. All take turns, so that what else the
    machine does is the same for each."""
    configuration = Configuration(state_backend="heap", parallelism=2, epoch_interval_seconds=0)
    with ExitStack() as stack:
        runs = {asked: stack.enter_context(Harness(pipeline(), configuration=configuration)) for asked in ASKED}
        for asked, harness in runs.items():
            for query in queries(asked):
                harness.ask("queries", query)
        took: dict[int, list[float]] = {asked: [] for asked in ASKED}
        for file in files:
            for asked, harness in runs.items():
                frame = SparkSession.active().read.parquet(str(file))
                began = time.monotonic()
                harness.epoch(events=frame)
                took[asked].append(time.monotonic() - began)
    return {asked: statistics.median(seconds[3:]) for asked, seconds in took.items()}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--epochs", type=int, default=15)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{epoch}.parquet" for epoch in range(given.epochs)]
        for epoch, file in enumerate(files):
            events(file, epoch, given.rows)
        found = seconds_of_epochs(files)
    without, first = found[0], found[1] - found[0]
    print(f"no queries: {without:.3f} s an epoch of {given.rows:,} events")
    for asked in ASKED[1:]:
        added = found[asked] - without
        print(f"{asked:5,} queries: {added:+.3f} s, {added / first:.1f} times what one adds")


if __name__ == "__main__":
    main()
