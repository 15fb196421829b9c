"""One history: driver runs of an application, disturbed one after the other by faults drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Literal

import psycopg
from confluent_kafka import Producer
from deltalake import DeltaTable
from hdfs import InsecureClient
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import make_url

import epochal.backends
import epochal.engine
from epochal.contracts.catalog import EpochRecord
from epochal.faults import Fault, declared
from epochal.service.catalog.standalone import standalone_epochs
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import DriverPlan, DriverProcess
from epochal.testing.invariants import History as EngineHistory
from epochal.testing.invariants import (
    broken_lineage,
    orphans,
    unfinished_epochs,
    visible_rows,
    wrong_state,
    wrongly_visible,
)
from epochal.testing.kafka_reading import Watcher, open_transactions, read_topic
from epochal.testing.oracle import Expectation, Row, Rows, expectations, multiset
from tests.servers.chaos import driver as chaos_driver
from tests.servers.chaos import machines as chaos_machines
from tests.servers.chaos import store as chaos_store
from tests.servers.chaos.machines import MACHINES
from tests.servers.chaos.servers import DISTURBANCES, Servers
from tests.service.fault.faulty_application import ORACLES
from tests.service.fault.points import covered_in

PIPELINE = Path(__file__).with_name("application.py")
NAME = "chaos"
SENSORS = 9
EPOCHS_A_LIFE = 3
ROWS_AN_EPOCH = 10
PARTITIONS = 2
PATIENCE_SECONDS = 600
"""Generous, because parallel histories and busy machines are slow without being wrong."""
UNREACHED_POINTS = (
    "E5.postgresql",
    "R1.postgresql",
    "T1.postgresql",
    "T3.postgresql",
    "E7.base",
    "catalog.complete",
    "G",
    "V",
)
TASK_BYTES = (None, 0, 4000)
"""Limits of the files that a task passes to the driver: with 0 it writes all, with 4,000 bytes some. ``None``: the
usual limit, so that all files are in packs."""
Place = Literal["folder", "s3"]
CONFIGURATION: dict[str, Any] = {
    "parallelism": 2,
    "max_parallelism": 8,
    "epoch_interval_seconds": 0,
    "compact_after_epochs": 1000,
    "max_records_per_epoch": ROWS_AN_EPOCH,
    "max_uncommitted_epochs": 2,
    "master": "local[2]",
}


def all_points() -> list[str]:
    """Every declared fault point that this application can reach."""
    for package in (epochal.engine, epochal.backends):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    here = [name for name in declared() if covered_in(name) is None or name.startswith("catalog.")]
    return [name for name in here if not name.startswith(UNREACHED_POINTS)]


def place_of_seed(seed: int) -> Place:
    """Store of a history: a folder of this machine, or a bucket."""
    return random.Random(f"place of {seed}").choice(("folder", "s3"))


@dataclass
class Report:
    """Results of one history."""

    place: Place = "folder"
    lives: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class History:
    """The application of one seed, with its own local folder, topics, database and HDFS folder."""

    def __init__(self, seed: int, folder: Path, servers: Servers, place: Place | None = None) -> None:
        """``place``: of the store; ``None``: chosen by the seed."""
        self.chance, self.store_chance = random.Random(seed), random.Random(f"store of {seed}")
        self.place = place or place_of_seed(seed)
        self.folder, self.servers, self.report = folder, servers, Report(self.place)
        self.bucket = servers.store.server.create_bucket() if self.place == "s3" else ""
        self.store_url = str(folder / "run" / "store") if self.place == "folder" else f"s3://{self.bucket}/store"
        self.landing: threading.Timer | None = None
        self.configuration = dict(CONFIGURATION)
        self.machines = servers.machines
        if self.machines is not None:
            self.machines.clear()
            self.configuration |= {"parallelism": MACHINES, **self.machines.configuration}
        for name in ("run", "flags"):
            (folder / name).mkdir(parents=True)
        self.input = servers.kafka.create_topic(partitions=PARTITIONS, prefix="events")
        self.topic = servers.kafka.create_topic(prefix="totals")
        url = make_url(servers.postgresql.create_database())
        self.password = folder / "password"
        self.password.write_text(url.password or "")
        self.password.chmod(0o600)
        self.database = url._replace(password=None, port=servers.postgresql_proxy.port).render_as_string()
        self.conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.hdfs = f"{servers.hdfs.create_folder()}/streaks"
        self.tables = str(folder / "tables") if self.place == "folder" else f"s3://{self.bucket}/tables"
        self.catalog = folder / "catalog.sqlite"
        self._iceberg.create_namespace("chaos")
        self.log: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
        self.watcher = Watcher(servers.kafka.bootstrap, self.topic)

    def live(self, lives: int) -> Report:
        """Run the driver ``lives`` times with a disturbance and once without; compare all output with the oracle."""
        try:
            for _ in range(lives):
                self.feed(EPOCHS_A_LIFE * ROWS_AN_EPOCH)
                self._life()
            self.feed(ROWS_AN_EPOCH)
            self.finish()
            self._land()
            self.report.violations += self.violations()
        finally:
            self.watcher.stop()
        return self.report

    def _life(self) -> None:
        kinds = ["point", "point", "point", "task", "moment", "server", "server"]
        of_store = ["store"] * (8 if self.place == "s3" else 0)
        of_machines = ["machine"] * (16 if self.machines is not None else 0)
        kind = self.chance.choice([*kinds, *of_store, *of_machines])
        if kind == "machine":
            self._disturb_machines(self.chance.choice(chaos_machines.DISTURBANCES))
        elif kind == "store":
            self._disturb_store(self.chance.choice(chaos_store.DISTURBANCES))
        elif kind == "server":
            self._disturb_servers(self.chance.choice(DISTURBANCES))
        elif kind == "moment":
            driver = self.start()
            driver.wait_until(lambda: "R1 take over" in driver.log_end(100_000), PATIENCE_SECONDS)
            time.sleep(self.chance.uniform(0, 6))
            driver.kill()
            self.report.fired["driver killed at a random time"] += 1
        else:
            tasks = [point for point in all_points() if point.startswith("T")]
            others = [point for point in all_points() if not point.startswith("T")]
            point = self.chance.choice(tasks if kind == "task" else others)
            fault = self.fault(point)
            driver = self.start(task_faults=[fault]) if kind == "task" else self.start(faults=[fault])
            if driver.wait(PATIENCE_SECONDS) not in (0, -signal.SIGKILL):
                self.report.violations.append(f"{point}: wrong exit code of the driver: {driver.log_end(600)}")
            self.report.fired[point] += fault.once is not None and Path(fault.once).exists()

    def _disturb_servers(self, what: str) -> None:
        driver = self.start()
        time.sleep(self.chance.uniform(2, 6))
        self.servers.disturb(what)
        self.report.fired[what] += 1
        driver.wait(PATIENCE_SECONDS)

    def _disturb_machines(self, what: str) -> None:
        """Disturb machines while the driver works; Spark repeats their tasks elsewhere, and the driver goes on."""
        assert self.machines is not None
        driver = self.start()
        driver.wait_until(lambda: "R1 take over" in driver.log_end(100_000), PATIENCE_SECONDS)
        time.sleep(self.chance.uniform(0, 6))
        self.machines.disturb(what, self.chance, lambda: driver.running)
        self.report.fired[what] += 1
        if driver.wait(PATIENCE_SECONDS) != 0:
            self.report.violations.append(f"{what}: wrong exit code of the driver: {driver.log_end(600)}")

    def _disturb_store(self, what: str) -> None:
        """Disturb the store while the driver works; it waits, and no attempt fails."""
        store, chance = self.servers.store, self.store_chance
        driver = self.start()
        driver.wait_until(lambda: "R1 take over" in driver.log_end(100_000), PATIENCE_SECONDS)
        time.sleep(chance.uniform(0, 4))

        def works() -> bool:
            return driver.running

        if what == "writes of a dead driver land late":
            self._land()
            self.report.fired[what] += store.hold(chance, works)
            driver.kill()
            if chance.random() < 0.7:  # while the next driver runs
                self.landing = store.release_after(chance.uniform(0, 12))
            else:
                self._land()
            return
        store.disturb(what, chance, works)
        self.report.fired[what] += 1
        # The store also has the tables of two sinks, whose tasks fail: several failed epochs end an attempt.
        if driver.wait(PATIENCE_SECONDS) != 0 and not _names_a_table(driver.log_end(20_000)):
            self.report.violations.append(f"{what}: wrong exit code of the driver: {driver.log_end(600)}")

    def _land(self) -> None:
        """Wait for the writes of dead drivers that have not landed."""
        if self.landing is not None:
            self.landing.join()
            self.landing = None
        self.servers.store.wait_until_landed()

    def finish(self) -> None:
        """Run the driver to the end of the input and stop it gracefully."""
        driver = self.start(epochs=0)
        try:
            driver.wait_until(self._is_finished, PATIENCE_SECONDS)
            driver.send(signal.SIGINT)
            if driver.wait(PATIENCE_SECONDS) != 0:
                self.report.violations.append(f"the driver does not stop gracefully: {driver.log_end()}")
        except AssertionError as error:
            driver.kill()
            self.report.violations.append(f"the driver does not finish: {error}")

    def _is_finished(self) -> bool:
        history = self._history
        if not history.snapshots or history.decided[-1].state != "committed":
            return False
        end = history.snapshots[-1][1].slices["events"].end["offsets"][self.input]
        return all(end.get(str(partition), 0) == len(log) for partition, log in self.log.items())

    def start(
        self, faults: Sequence[Fault] = (), task_faults: Sequence[Fault] = (), epochs: int = EPOCHS_A_LIFE
    ) -> DriverProcess:
        self.servers.jvm.end_context()
        self.report.lives += 1
        plan = DriverPlan(
            pipeline=PIPELINE,
            directory=self.folder / "run",
            parameters={
                "servers": self.servers.kafka.bootstrap_through_proxy,
                "input": self.input,
                "topic": self.topic,
                "database": self.database,
                "password": str(self.password),
                "name_node": self.servers.name_node,
                "user": self.servers.hdfs.user,
                "hdfs": self.hdfs,
                "folder": str(self.folder / "streaks"),
                "tables": self.tables,
                "catalog": str(self.catalog),
            },
            configuration=self.configuration | self._task_bytes,
            epochs=epochs or None,
            faults=faults,
            task_faults=task_faults,
            variables={chaos_driver.STORE: self.store_url} | self._own_cache,
            program=chaos_driver.__name__,
        )
        return DriverProcess(
            plan, self.folder / f"driver-{self.report.lives}.log", self.servers.jvm, self.servers.drivers
        )

    @property
    def _own_cache(self) -> dict[str, str]:
        return {} if self.machines is None else {chaos_driver.CACHE: str(self.machines.cache)}

    @property
    def _task_bytes(self) -> dict[str, str]:
        """The limit of this life."""
        limit = self.store_chance.choice(TASK_BYTES)
        return {} if limit is None else {"spark.executorEnv.CHAOS_TASK_BYTES": str(limit)}

    def fault(self, point: str) -> Fault:
        return Fault(point, "kill", once=str(self.folder / "flags" / f"{self.report.lives}-{point}"))

    def feed(self, rows: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers.kafka.bootstrap, "enable.idempotence": True})
        for _ in range(rows):
            partition = self.chance.randrange(PARTITIONS)
            event = sum(map(len, self.log.values()))
            row = {
                "event": event,
                "sensor": f"s{self.chance.randrange(SENSORS)}",
                "value": self.chance.randrange(100),
            }
            producer.produce(self.input, json.dumps(row).encode(), partition=partition)
            self.log[partition].append(row)
        if producer.flush(60):
            raise AssertionError("the input could not be produced")

    @property
    def _history(self) -> EngineHistory:
        store = SnapshotStore(self.store_url)
        url = f"sqlite:///{self.folder / 'run' / 'catalog.sqlite'}"
        epochs: list[EpochRecord] = standalone_epochs(url, NAME)
        return EngineHistory(store, epochs, {"streaks": self.folder / "streaks"})

    def _slices(self, manifest: Manifest) -> dict[str, list[Row]]:
        """The rows of an epoch's slice. This history has the only producer, so offsets count its records."""
        slice = manifest.slices["events"]
        before = slice.start["offsets"].get(self.input, {})
        after = slice.end["offsets"][self.input]
        rows = [
            row
            for partition, log in self.log.items()
            for row in log[before.get(str(partition), 0) : after.get(str(partition), 0)]
        ]
        return {"events": rows}

    def violations(self) -> list[str]:
        history = self._history
        found = [*unfinished_epochs(history), *broken_lineage(history), *wrongly_visible(history)]
        found += self._orphans(history)
        read = 0
        topic: Rows = Counter()
        streaks: Rows = Counter()
        table: dict[str, Row] = {}
        expected_by_epoch = expectations(ORACLES, (self._slices(manifest) for _, manifest in history.snapshots))
        for (reference, manifest), expected in zip(history.snapshots, expected_by_epoch, strict=True):
            read += len(self._slices(manifest)["events"])
            found += wrong_state(history.store, reference, expected)
            found += self._wrong_folders(reference.epoch, expected)
            topic += expected.output["totals"]
            streaks += expected.output["streaks"]
            table.update({str(dict(row)["sensor"]): dict(row) for row in expected.output["totals"]})
        if read != sum(map(len, self.log.values())):
            found.append(f"{read} of {sum(map(len, self.log.values()))} records were processed")
        found += [*self._wrong_topic(topic), *self._wrong_table(table), *self._wrong_tables_of_versions(streaks)]
        return [*found, *self._left_behind()]

    def _orphans(self, history: EngineHistory) -> list[str]:
        """Files that no snapshot needs, except for those that landed after the sweep: collection removes them."""
        late = {path.removeprefix("store/") for path in self.servers.store.landed_late(self.bucket)}
        return [found for found in orphans(history) if found.partition(" ")[0] not in late]

    def _wrong_folders(self, epoch: int, expected: Expectation) -> list[str]:
        found = []
        if visible_rows(self.folder / "streaks", epoch) != expected.output["streaks"]:
            found.append(f"files, epoch {epoch}: not the oracle's rows")
        if self._hdfs_rows(epoch) != expected.output["streaks"]:
            found.append(f"hdfs, epoch {epoch}: not the oracle's rows")
        return found

    def _hdfs_rows(self, epoch: int) -> Rows:
        client = InsecureClient(self.servers.hdfs.url, user=self.servers.hdfs.user)
        folder = f"{self.hdfs}/epoch={epoch:010}"
        rows: list[Row] = []
        if client.status(folder, strict=False) is not None:
            for name in client.list(folder):
                with client.read(f"{folder}/{name}") as file:
                    rows += [json.loads(line) for line in file.read().splitlines()]
        return multiset(rows)

    def _wrong_topic(self, expected: Rows) -> list[str]:
        found_rows = [message.value() or b"" for message in read_topic(self.servers.kafka.bootstrap, self.topic)]
        found = []
        if multiset(json.loads(value) for value in found_rows) != expected:
            found.append(f"topic: {len(found_rows)} records, {expected.total()} expected, not the same")
        seen = [value for _, _, value in self.watcher.seen]
        if seen != found_rows[: len(seen)]:
            found.append("topic: a read_committed reader saw records that are not in the topic, or in another order")
        return found

    def _wrong_table(self, expected: dict[str, Row]) -> list[str]:
        with psycopg.connect(self.conninfo) as connection:
            cursor = connection.execute("SELECT sensor, events, total, highest FROM totals")
            found_rows = {
                row[0]: dict(zip(("sensor", "events", "total", "highest"), row, strict=True)) for row in cursor
            }
        return (
            [] if found_rows == expected else [f"table: {len(found_rows)} rows, {len(expected)} expected, not the same"]
        )

    def _wrong_tables_of_versions(self, expected: Rows) -> list[str]:
        """The Delta and the Iceberg table have each row once."""
        delta = DeltaTable(f"{self.tables}/delta", storage_options={"allow_http": "true"}).to_pyarrow_table()
        iceberg = self._iceberg.load_table("chaos.streaks").scan().to_arrow()
        return [
            f"{name}: {rows.num_rows} rows, {expected.total()} expected, not the same"
            for name, rows in (("delta", delta), ("iceberg", iceberg))
            if multiset(rows.to_pylist()) != expected
        ]

    @property
    def _iceberg(self) -> Catalog:
        warehouse = self.tables if self.place == "s3" else f"file://{self.tables}"
        endpoint = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]} if self.place == "s3" else {}
        return load_catalog(
            "default", type="sql", uri=f"sqlite:///{self.catalog}", warehouse=f"{warehouse}/iceberg", **endpoint
        )

    def _left_behind(self) -> list[str]:
        client = InsecureClient(self.servers.hdfs.url, user=self.servers.hdfs.user)
        staging = f"{self.hdfs}/_staging"
        files: list[str] = []
        if client.status(staging, strict=False) is not None:
            files = [f"{folder}/{name}" for folder, _, names in client.walk(staging) for name in names]
        found = [f"hdfs: {path} was left behind" for path in files]
        if open_transactions(self.servers.kafka.bootstrap, self.topic):
            found.append("topic: a transaction is open")
        return found


def _names_a_table(log: str) -> bool:
    return "Sink 'delta'" in log or "Sink 'iceberg'" in log
