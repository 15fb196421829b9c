"""``python -m examples.kafka.demo``: a private broker, flights as input, delays and alerts as output.

Kills the driver during a transaction, restarts it, and compares both topics, as a read_committed consumer reads them,
with results of pandas. Exits 0 only if they are equal, and leaves no process running.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pandas as pd
from confluent_kafka import Producer

from epochal.faults import Fault
from epochal.testing.drivers import DriverPlan, DriverProcess
from epochal.testing.kafka_reading import read_topic
from epochal.testing.servers.kafka import KafkaServer, kafka
from examples.flights.data import flights_by_day

PIPELINE = Path(__file__).with_name("pipeline.py")
DAYS = 3
KILLED_ON = 1
LATE_MINUTES = 15


def main() -> int:
    # With Kafka's default retention, the broker would delete records of 2013 immediately.
    with tempfile.TemporaryDirectory(prefix="epochal-example-") as folder, kafka(log_retention_ms="-1") as server:
        return run(server, Path(folder))


def run(server: KafkaServer, folder: Path) -> int:
    server.create_topic(partitions=3, name="flights")
    days = flights_by_day()[:DAYS]
    for number, (day, flights) in enumerate(days):
        produce(server, flights)
        killed = number == KILLED_ON
        code = run_driver(server, folder, number, killed)
        print(f"{day}: {len(flights)} flights; the driver {'was killed in its transaction' if killed else 'ended'}")
        if code != (-9 if killed else 0):
            return 1
    arrived = pd.concat([flights for _, flights in days]).dropna(subset=["delay", "tail"])
    equal = [same_delays(server, arrived), same_alerts(server, arrived)]
    return 0 if all(equal) else 1


def run_driver(server: KafkaServer, folder: Path, number: int, killed: bool) -> int:
    """Run the driver for one epoch. ``killed``: kill it after it has sent records and marker, before the commit."""
    plan = DriverPlan(
        pipeline=PIPELINE,
        directory=folder / "run",
        parameters={"servers": server.bootstrap, "late_minutes": LATE_MINUTES},
        configuration={"parallelism": 2, "epoch_interval_seconds": 0, "master": "local[2]"},
        epochs=1,
        faults=[Fault("E5.kafka.marked", "kill")] if killed else [],
    )
    driver = DriverProcess(plan, folder / f"driver-{number}.log")
    code = driver.wait(300)
    if code not in (0, -9):
        print(driver.log_end(), file=sys.stderr)
    return code


def produce(server: KafkaServer, flights: pd.DataFrame) -> None:
    """Send one record per flight; all flights of an aircraft go to one partition."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "partitioner": "murmur2_random"})
    lines = flights.to_json(orient="records", lines=True, date_format="iso").splitlines()
    for line, tail in zip(lines, flights["tail"], strict=True):
        producer.produce("flights", line, tail if isinstance(tail, str) else None)
    if producer.flush(60):
        raise RuntimeError("the broker did not accept all flights")


def same_delays(server: KafkaServer, arrived: pd.DataFrame) -> bool:
    """Compare the newest record of each carrier."""
    newest = {message.key(): json.loads(message.value() or b"") for message in read_topic(server.bootstrap, "delays")}
    found = {row["carrier"]: (row["flights"], row["total_delay"], row["worst_delay"]) for row in newest.values()}
    grouped = arrived.groupby("carrier")["delay"].agg(["count", "sum", "max"])
    expected = {
        str(carrier): tuple(map(int, row)) for carrier, row in zip(grouped.index, grouped.to_numpy(), strict=True)
    }
    print(f"{len(found)} carriers in topic delays, {'equal' if found == expected else 'NOT EQUAL'} to pandas")
    return found == expected


def same_alerts(server: KafkaServer, arrived: pd.DataFrame) -> bool:
    """Compare all alerts as a multiset."""
    found: Counter[tuple[str, int, str]] = Counter()
    for message in read_topic(server.bootstrap, "alerts"):
        row = json.loads(message.value() or b"")
        flight = dict(message.headers() or [])["flight"]
        found[row["tail"], row["late_in_a_row"], flight.decode() if isinstance(flight, bytes) else str(flight)] += 1
    expected: Counter[tuple[str, int, str]] = Counter()
    for tail, flights in arrived.sort_values(["time", "carrier", "flight"], kind="stable").groupby("tail"):
        late = 0
        for flight in flights.itertuples():
            late = late + 1 if flight.delay >= LATE_MINUTES else 0
            if late >= 3:
                expected[str(tail), late, f"{flight.carrier}{flight.flight}"] += 1
    print(f"{found.total()} records in topic alerts, {'equal' if found == expected else 'NOT EQUAL'} to pandas")
    return found == expected


if __name__ == "__main__":
    sys.exit(main())
