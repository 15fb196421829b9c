"""Rollback and import with real drivers and every kind of sink at once: files, Kafka, PostgreSQL (both), HDFS.

An application counts the events of a topic by sensor. It is rolled back and makes its last events again; then it moves
to a second control plane, once with the same brokers, at its offsets, and once with others, at a time.
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

SECONDS = 180
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


def build(given: Parameters) -> Pipeline:
    pipeline = Pipeline("counts")
    events = pipeline.read("events", kafka.source(given.servers, given.events, schema="sensor string"))
    counts = events.key_by("sensor").aggregate("counts", events="count(*)")
    database = {"create": True, "password": secret(f"file:{given.password}")}
    counts.write("files", files.sink(given.folder, format="json", mode="updates"))
    counts.write("kafka", kafka.sink(given.servers, given.topic, key="sensor", create=1))
    counts.write("table", dbms.sink(given.database, given.table, keys="sensor", **database))
    counts.write("checked", dbms.two_phase_sink(given.database, given.checked, keys="sensor", **database))
    hdfs_sink = hdfs.sink(given.namenode, given.path, format="json", mode="updates", user=given.user)
    counts.write("hdfs", hdfs_sink)
    return pipeline
"""


@dataclass
class Places:
    """Where one application reads and writes, and how to look there without Epochal."""

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
        """What a reader sees in the two folders: local, and in HDFS."""
        local = [file.read_text() for file in (self.folder / self.name).glob("epoch=*/[!_.]*")]
        client, path = InsecureClient(self.hdfs.url, user=self.hdfs.user), self.parameters["path"]
        remote = []
        for shown in [name for name in client.list(path) if name.startswith("epoch=")]:
            for name in client.list(f"{path}/{shown}"):
                with client.read(f"{path}/{shown}/{name}", encoding="utf-8") as file:
                    remote.append(file.read())
        return [counted(texts) for texts in (local, remote)]

    def records(self) -> Counter[tuple[str, int]]:
        values = read_topic(self.kafka.bootstrap, self.parameters["topic"])
        return counted([(message.value() or b"").decode() + "\n" for message in values])


def counted(texts: list[str]) -> Counter[tuple[str, int]]:
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return Counter((row["sensor"], row["events"]) for row in rows)


@pytest.fixture
def places(kafka_server: KafkaServer, hdfs_server: HdfsServer, postgresql_url: str, tmp_path: Path) -> Places:
    (tmp_path / "password").write_text(sa.make_url(postgresql_url).password or "")
    events = kafka_server.create_topic(prefix="events")
    return Places(kafka_server, hdfs_server, postgresql_url, tmp_path, events, "first")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with control_plane(tmp_path / "one") as running:
        yield running


def submit(client: Client, places: Places, tmp_path: Path) -> None:
    file = tmp_path / "counts.py"
    file.write_text(CODE)
    artifact = client.artifacts.upload(file)
    client.applications.create(
        NAME,
        artifact.sha256,
        parameters=places.parameters,
        configuration={"epoch_interval_seconds": 0.2, "state_backend": "heap", "parallelism": 1, "max_parallelism": 8},
    )
    client.applications.wait(NAME, timeout_seconds=SECONDS)


def read_to(client: Client, total: int, name: str = NAME) -> int:
    """Wait until so many events were read on this lineage; the epoch then."""
    deadline = time.monotonic() + SECONDS
    while True:
        epochs = client.application(name).epochs.list(state="committed", limit=None)
        if sum(epoch.rows_in or 0 for epoch in epochs) >= total:
            return max(epoch.epoch for epoch in epochs)
        assert time.monotonic() < deadline, client.applications.get(name)
        time.sleep(0.1)


def stop(client: Client, name: str = NAME) -> None:
    client.operations.wait(client.applications.stop(name), timeout_seconds=SECONDS)


def test_back_and_into_another_control_plane(plane: ControlPlane, places: Places, tmp_path: Path) -> None:
    with plane.client() as client:
        places.produce("a", "b", "a")
        submit(client, places, tmp_path)
        first = read_to(client, 3)
        places.produce("a", "c")
        read_to(client, 5)
        assert places.tables() == [{"a": 3, "b": 1, "c": 1}] * 2

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
        done = client.operations.wait(operation, timeout_seconds=SECONDS)
        assert done.result is not None and done.result["parent"]["epoch"] == first
        again = read_to(client, 5)
        assert again > first + 1  # above every number of the branch that was left
        stop(client)
        assert places.tables() == [{"a": 3, "b": 1, "c": 1}] * 2
        once = Counter({("a", 2): 1, ("b", 1): 1, ("a", 3): 1, ("c", 1): 1})
        assert places.folders() == [once, once]
        assert places.records() == once + Counter({("a", 3): 1, ("c", 1): 1})

        exports = client.application(NAME).exports
        bundle = tmp_path / "bundle"
        exports.fetch(client.operations.wait(exports.create(), timeout_seconds=SECONDS), bundle)

    before = datetime.now(UTC)
    time.sleep(0.01)
    places.produce("a", "d")
    with control_plane(tmp_path / "two") as second, second.client() as client:
        moved_on(client, places, bundle)
        other_brokers(client, places, bundle, before)


def moved_on(client: Client, places: Places, bundle: Path) -> None:
    """At its offsets: the same brokers, other targets."""
    upload = client.imports.upload(bundle)
    with pytest.raises(InvalidInput, match=r"Sink 'checked' would write to .*Sink 'table' would write to"):
        client.imports.make(upload.id)
    there = Places(places.kafka, places.hdfs, places.url, places.folder, places.events, "second")
    old, new = places.parameters, there.parameters
    mapping = {old[name]: new[name] for name in ("topic", "folder", "table", "checked", "path")}
    client.operations.wait(client.imports.make(upload.id, map=mapping, start=True), timeout_seconds=SECONDS)
    client.applications.wait(NAME, timeout_seconds=SECONDS)
    read_to(client, 7)
    stop(client)
    fresh = Counter({("a", 4): 1, ("d", 1): 1})
    assert there.tables() == [{"a": 4, "d": 1}] * 2
    assert (there.folders(), there.records()) == ([fresh, fresh], fresh)


def other_brokers(client: Client, places: Places, bundle: Path, at: datetime) -> None:
    """At a time: what looks like other brokers."""
    there = Places(places.kafka, places.hdfs, places.url, places.folder, places.events, "third")
    given = {**there.parameters, "servers": places.kafka.bootstrap_through_proxy}
    upload = client.imports.upload(bundle)
    with pytest.raises(InvalidInput, match="would read from other brokers"):
        client.imports.make(upload.id, name="third", parameters=given)
    operation = client.imports.make(upload.id, name="third", parameters=given, sources={"events": at}, start=True)
    client.operations.wait(operation, timeout_seconds=SECONDS)
    client.applications.wait("third", timeout_seconds=SECONDS)
    read_to(client, 7, "third")
    stop(client, "third")
    assert there.tables() == [{"a": 4, "d": 1}] * 2
