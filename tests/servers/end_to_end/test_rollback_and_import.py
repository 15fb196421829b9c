"""Rollback and import with real drivers and all kinds of sinks: files, Kafka, PostgreSQL (both), HDFS.

An application counts the events of a topic by sensor. It is rolled back and processes its last events again. It is
then imported into a second control plane twice: with the same brokers at its offsets, and with other brokers at a time.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from hdfs import InsecureClient

from epochal.client import Client
from epochal.errors import InvalidInput
from epochal.testing.kafka_reading import read_topic
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.kafka import KafkaServer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(1800)]

TIMEOUT_SECONDS = 180
NAME = "counts"
CODE = """
from pydantic import BaseModel
from epochal import Pipeline
from epochal.connectors import dbms, files, hdfs, kafka
from epochal.secrets import secret


class Parameters(BaseModel):
    servers: str
    events: str
    topic: str
    folder: str
    database: str
    password: str
    table: str
    checked: str
    namenode: str
    user: str
    path: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("counts")
    events = pipeline.read("events", kafka.source(parameters.servers, parameters.events, schema="sensor string"))
    counts = events.key_by("sensor").aggregate("counts", events="count(*)")
    database = {"create": True, "password": secret(f"file:{parameters.password}")}
    counts.write("files", files.sink(parameters.folder, format="json", mode="updates"))
    counts.write("kafka", kafka.sink(parameters.servers, parameters.topic, key="sensor", create=1))
    counts.write("table", dbms.sink(parameters.database, parameters.table, keys="sensor", **database))
    counts.write("checked", dbms.two_phase_sink(parameters.database, parameters.checked, keys="sensor", **database))
    hdfs_sink = hdfs.sink(parameters.namenode, parameters.path, format="json", mode="updates", user=parameters.user)
    counts.write("hdfs", hdfs_sink)
    return pipeline
"""


@dataclass
class Targets:
    """The input and the targets of one application, with readers that do not use Epochal."""

    kafka: KafkaServer
    hdfs: HdfsServer
    url: str
    folder: Path
    events: str
    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "servers": self.kafka.bootstrap,
            "events": self.events,
            "topic": f"{self.events}-{self.name}",
            "folder": str(self.folder / self.name),
            "database": sa.make_url(self.url)._replace(password=None).render_as_string(),
            "password": str(self.folder / "password"),
            "table": f"{self.name}_counts",
            "checked": f"{self.name}_checked",
            "namenode": self.hdfs.url,
            "user": self.hdfs.user,
            "path": f"{self.hdfs_folder}/{self.name}",
        }

    @property
    def hdfs_folder(self) -> str:
        return f"/tmp/{self.events}"

    def produce(self, *sensors: str) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for sensor in sensors:
            producer.produce(self.events, json.dumps({"sensor": sensor}).encode())
        assert producer.flush(30) == 0

    def tables(self) -> list[dict[str, int]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            names = (self.parameters["table"], self.parameters["checked"])
            rows = [connection.execute(sa.text(f"SELECT sensor, events FROM {name}")).all() for name in names]
        return [dict(sorted((sensor, events) for sensor, events in found)) for found in rows]

    def folders(self) -> list[Counter[tuple[str, int]]]:
        """The visible rows of the two folders: local, and in HDFS."""
        local = [file.read_text() for file in (self.folder / self.name).glob("epoch=*/[!_.]*")]
        client, path = InsecureClient(self.hdfs.url, user=self.hdfs.user), self.parameters["path"]
        remote = []
        for shown in [name for name in client.list(path) if name.startswith("epoch=")]:
            for name in client.list(f"{path}/{shown}"):
                with client.read(f"{path}/{shown}/{name}", encoding="utf-8") as file:
                    remote.append(file.read())
        return [count_rows(texts) for texts in (local, remote)]

    def records(self) -> Counter[tuple[str, int]]:
        values = read_topic(self.kafka.bootstrap, self.parameters["topic"])
        return count_rows([(message.value() or b"").decode() + "\n" for message in values])


def count_rows(texts: list[str]) -> Counter[tuple[str, int]]:
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return Counter((row["sensor"], row["events"]) for row in rows)


@pytest.fixture
def targets(kafka_server: KafkaServer, hdfs_server: HdfsServer, postgresql_url: str, tmp_path: Path) -> Targets:
    (tmp_path / "password").write_text(sa.make_url(postgresql_url).password or "")
    events = kafka_server.create_topic(prefix="events")
    return Targets(kafka_server, hdfs_server, postgresql_url, tmp_path, events, "first")


@pytest.fixture
def first_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with control_plane(tmp_path / "one") as running:
        yield running


def submit(client: Client, targets: Targets, tmp_path: Path) -> None:
    file = tmp_path / "counts.py"
    file.write_text(CODE)
    artifact = client.artifacts.upload(file)
    client.applications.create(
        NAME,
        artifact.sha256,
        parameters=targets.parameters,
        configuration={"epoch_interval_seconds": 0.2, "state_backend": "heap", "parallelism": 1, "max_parallelism": 8},
    )
    client.applications.wait(NAME, timeout_seconds=TIMEOUT_SECONDS)


def wait_for_rows(client: Client, total: int, name: str = NAME) -> int:
    """Wait until ``total`` events have been read on this lineage; return the latest epoch."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        epochs = client.application(name).epochs.list(state="committed", limit=None)
        if sum(epoch.rows_in or 0 for epoch in epochs) >= total:
            return max(epoch.epoch for epoch in epochs)
        assert time.monotonic() < deadline, client.applications.get(name)
        time.sleep(0.1)


def stop(client: Client, name: str = NAME) -> None:
    client.operations.wait(client.applications.stop(name), timeout_seconds=TIMEOUT_SECONDS)


def test_rollback_and_import_with_all_kinds_of_sinks(
    first_plane: ControlPlane, targets: Targets, tmp_path: Path
) -> None:
    with first_plane.client() as client:
        targets.produce("a", "b", "a")
        submit(client, targets, tmp_path)
        first = wait_for_rows(client, 3)
        targets.produce("a", "c")
        wait_for_rows(client, 5)
        assert targets.tables() == [{"a": 3, "b": 1, "c": 1}] * 2

        rollback = client.application(NAME).rollback
        plan = rollback.plan(epoch=first, move_aside=True)
        assert plan.restarts and plan.confirm
        rules = {sink.sink: (sink.kind, sink.rule) for sink in plan.sinks}
        assert rules == {
            "files": ("files", "moved-aside"),
            "hdfs": ("hdfs", "moved-aside"),
            "kafka": ("kafka", "new-marker"),
            "table": ("dbms", "new-marker"),
            "checked": ("postgresql-two-phase", "new-marker"),
        }
        operation = rollback.to(epoch=first, move_aside=True, message="once more", confirm=plan.confirm)
        done = client.operations.wait(operation, timeout_seconds=TIMEOUT_SECONDS)
        assert done.result is not None and done.result["parent"]["epoch"] == first
        again = wait_for_rows(client, 5)
        assert again > first + 1  # numbers of the abandoned branch are not reused
        stop(client)
        assert targets.tables() == [{"a": 3, "b": 1, "c": 1}] * 2
        each_once = Counter({("a", 2): 1, ("b", 1): 1, ("a", 3): 1, ("c", 1): 1})
        assert targets.folders() == [each_once, each_once]
        assert targets.records() == each_once + Counter({("a", 3): 1, ("c", 1): 1})

        exports = client.application(NAME).exports
        bundle = tmp_path / "bundle"
        exports.fetch(client.operations.wait(exports.create(), timeout_seconds=TIMEOUT_SECONDS), bundle)

    before = datetime.now(UTC)
    time.sleep(0.01)
    targets.produce("a", "d")
    with control_plane(tmp_path / "two") as second, second.client() as client:
        check_import_with_the_same_brokers(client, targets, bundle)
        check_import_with_other_brokers(client, targets, bundle, before)


def check_import_with_the_same_brokers(client: Client, targets: Targets, bundle: Path) -> None:
    """Import at the offsets of the bundle: the same brokers, other targets."""
    upload = client.imports.upload(bundle)
    with pytest.raises(InvalidInput, match=r"Sink 'checked' would write to .*Sink 'table' would write to"):
        client.imports.make(upload.id)
    moved = Targets(targets.kafka, targets.hdfs, targets.url, targets.folder, targets.events, "second")
    old, new = targets.parameters, moved.parameters
    mapping = {old[name]: new[name] for name in ("topic", "folder", "table", "checked", "path")}
    client.operations.wait(client.imports.make(upload.id, map=mapping, start=True), timeout_seconds=TIMEOUT_SECONDS)
    client.applications.wait(NAME, timeout_seconds=TIMEOUT_SECONDS)
    wait_for_rows(client, 7)
    stop(client)
    new_rows = Counter({("a", 4): 1, ("d", 1): 1})
    assert moved.tables() == [{"a": 4, "d": 1}] * 2
    assert (moved.folders(), moved.records()) == ([new_rows, new_rows], new_rows)


def check_import_with_other_brokers(client: Client, targets: Targets, bundle: Path, at: datetime) -> None:
    """Import at a time: the proxy's address counts as other brokers."""
    moved = Targets(targets.kafka, targets.hdfs, targets.url, targets.folder, targets.events, "third")
    parameters = {**moved.parameters, "servers": targets.kafka.bootstrap_through_proxy}
    upload = client.imports.upload(bundle)
    with pytest.raises(InvalidInput, match="would read from other brokers"):
        client.imports.make(upload.id, name="third", parameters=parameters)
    operation = client.imports.make(upload.id, name="third", parameters=parameters, sources={"events": at}, start=True)
    client.operations.wait(operation, timeout_seconds=TIMEOUT_SECONDS)
    client.applications.wait("third", timeout_seconds=TIMEOUT_SECONDS)
    wait_for_rows(client, 7, "third")
    stop(client, "third")
    assert moved.tables() == [{"a": 4, "d": 1}] * 2
