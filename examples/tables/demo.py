"""``python -m examples.tables.demo``: a topic as input, a Delta and an Iceberg table as output.

Starts a private broker and a private store with an Iceberg catalog. Kills the driver between the commits of the two
tables, stops the store while epochs wait for it, and compares both tables with pandas. Then a second application reads
the Delta table as a stream. Exits 0 only if everything is equal, and leaves no process running.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from epochal.faults import Fault
from epochal.testing.drivers import DriverPlan, DriverProcess
from epochal.testing.servers.kafka import KafkaServer, kafka
from epochal.testing.servers.s3 import READY_BUCKET, WAREHOUSE, SeaweedServer, s3
from examples.flights.data import flights_by_day

HERE = Path(__file__).parent
DAYS = 3
LATE_MINUTES = 15
ARRIVALS = f"s3://{READY_BUCKET}/arrivals"
AWAY_SECONDS = 10.0
BETWEEN_THE_TABLES = "E5.table.committed"
Rows = Counter[tuple[Any, ...]]


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="epochal-example-") as folder,
        kafka(log_retention_ms="-1") as broker,  # with the default, the broker would delete records of 2013 immediately
        s3() as store,
    ):
        return Run(broker, store, Path(folder)).run()


class Run:
    def __init__(self, broker: KafkaServer, store: SeaweedServer, folder: Path) -> None:
        self.broker, self.store, self.folder = broker, store, folder
        self.days = flights_by_day()[:DAYS]
        self.variables = store.environment()
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        (self.secrets / "key").write_text(self.variables["AWS_ACCESS_KEY_ID"])
        (self.secrets / "secret").write_text(self.variables["AWS_SECRET_ACCESS_KEY"])
        key = f"{self.variables['AWS_ACCESS_KEY_ID']}:{self.variables['AWS_SECRET_ACCESS_KEY']}"
        (self.secrets / "credential").write_text(key)

    def run(self) -> int:
        self.broker.create_topic(partitions=2, name="flights")
        self.catalog.create_namespace_if_not_exists("flights")
        for number, (day, flights) in enumerate(self.days):
            produce(self.broker, flights)
            if number == 1:
                ended = self.driver(number, Fault(BETWEEN_THE_TABLES, "kill")).wait(300) == -9
                print(f"{day}: {len(flights)} flights; the driver was killed between the commits of the two tables")
            elif number == 2:
                ended = self.without_store(number)
                print(f"{day}: {len(flights)} flights; the store was away for {AWAY_SECONDS:g} s before the commits")
            else:
                ended = self.driver(number).wait(300) == 0
                print(f"{day}: {len(flights)} flights")
            if not ended:
                print(self.log_of(number), file=sys.stderr)
                return 1
        equal = [self.same_arrivals(), self.same_late_flights(), self.same_totals()]
        return 0 if all(equal) else 1

    def without_store(self, number: int) -> bool:
        """Stop the store after the tasks have staged their files, and start it again."""
        driver = self.driver(number, Fault("E5.before-sink", "delay", seconds=3.0))
        driver.wait_until(lambda: "E3 collect" in driver.log.read_text(errors="replace"))
        self.store.stop()
        time.sleep(AWAY_SECONDS)
        self.store.start()
        return driver.wait(300) == 0

    def driver(self, number: int, *faults: Fault) -> DriverProcess:
        """Start the driver for one epoch."""
        parameters = {
            **self.store_parameters,
            "servers": self.broker.bootstrap,
            "catalog": self.store.catalog_url,
            "warehouse": f"s3://{WAREHOUSE}",
            "late_minutes": LATE_MINUTES,
        }
        return self.started(HERE / "pipeline.py", "run", number, parameters, epochs=1, faults=list(faults))

    def started(self, pipeline: Path, name: str, number: int, parameters: dict[str, Any], **plan: Any) -> DriverProcess:
        configuration = {"parallelism": 2, "epoch_interval_seconds": 0, "master": "local[2]"}
        order = DriverPlan(
            pipeline=pipeline,
            directory=self.folder / name,
            parameters=parameters,
            configuration=configuration,
            **plan,
        )
        return DriverProcess(order, self.folder / f"{name}-{number}.log")

    @property
    def store_parameters(self) -> dict[str, Any]:
        return {"arrivals": ARRIVALS, "endpoint": self.store.endpoint, "secrets": str(self.secrets)}

    @property
    def catalog(self) -> Catalog:
        return load_catalog(
            "example",
            type="rest",
            uri=self.store.catalog_url,
            warehouse=f"s3://{WAREHOUSE}",
            credential=(self.secrets / "credential").read_text(),
            **{
                "s3.endpoint": self.store.endpoint,
                "s3.region": self.variables["AWS_REGION"],
                "s3.access-key-id": self.variables["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": self.variables["AWS_SECRET_ACCESS_KEY"],
            },
        )

    def log_of(self, number: int) -> str:
        return (self.folder / f"run-{number}.log").read_text(errors="replace")[-3000:]

    @property
    def arrived(self) -> pd.DataFrame:
        return pd.concat([flights for _, flights in self.days]).dropna(subset=["delay"])

    def same_arrivals(self) -> bool:
        table = DeltaTable(ARRIVALS, storage_options=dict(self.variables)).to_pyarrow_table(
            columns=["carrier", "flight", "delay"]
        )
        return same("Delta table arrivals", rows_of(table.to_pandas()), rows_of(self.arrived))

    def same_late_flights(self) -> bool:
        table = self.catalog.load_table("flights.late").scan().to_arrow()
        late = self.arrived[self.arrived["delay"] >= LATE_MINUTES]
        return same("Iceberg table flights.late", rows_of(table.to_pandas()), rows_of(late))

    def same_totals(self) -> bool:
        """The last totals of each carrier, by the second application."""
        output = self.folder / "totals"
        driver = self.started(HERE / "totals.py", "carriers", 0, {**self.store_parameters, "output": str(output)})
        if driver.wait(300) != 0:
            print(driver.log_end(), file=sys.stderr)
            return False
        written = pq.read_table(output).to_pandas().sort_values("epoch").groupby("carrier").last()
        grouped = self.arrived.groupby("carrier")["delay"].agg(["count", "sum"])
        found = {str(name): (int(row.flights), int(row.delay)) for name, row in written.iterrows()}
        expected = {str(name): (int(row["count"]), int(row["sum"])) for name, row in grouped.iterrows()}
        print(f"{len(found)} carriers of the second application, {verdict(found == expected)} to pandas")
        return found == expected


def rows_of(flights: pd.DataFrame) -> Rows:
    columns = flights[["carrier", "flight", "delay"]].itertuples(index=False)
    return Counter((str(row.carrier), int(row.flight), int(row.delay)) for row in columns)


def same(name: str, found: Rows, expected: Rows) -> bool:
    print(f"{found.total()} rows in {name}, {verdict(found == expected)} to pandas")
    return found == expected


def verdict(equal: bool) -> str:
    return "equal" if equal else "NOT EQUAL"


def produce(broker: KafkaServer, flights: pd.DataFrame) -> None:
    """Send one record per flight."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for line in flights.to_json(orient="records", lines=True, date_format="iso").splitlines():
        producer.produce("flights", line)
    if producer.flush(60):
        raise RuntimeError("the broker did not accept all flights")


if __name__ == "__main__":
    sys.exit(main())
