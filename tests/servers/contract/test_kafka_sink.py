"""The Kafka sink satisfies the sink contract on a real broker, also with lost answers and repeated calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.backends.kafka.backend import KafkaBackend, KafkaSinkSettings
from epochal.backends.kafka.connection import Connection
from epochal.backends.kafka.encoding import JsonEncoder
from epochal.backends.kafka.records import RecordShape
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import DegradedSinkHarness, Losses, SinkBackendContract, SinkHarness, StepAnswers
from epochal.testing.kafka_reading import open_transactions, read_topic
from epochal.testing.servers.kafka import KafkaServer

pytestmark = pytest.mark.server


class Topic(SinkHarness):
    """A topic with its own marker topic, read without Epochal by a read_committed consumer."""

    def __init__(self, server: KafkaServer, folder: Path, **settings: Any) -> None:
        self.server = server
        self.topic = server.create_topic(partitions=3)
        self.place = SinkPlace("out", SnapshotStore(str(folder / "store")))
        shape = RecordShape(JsonEncoder(), self.topic, key=("id",))
        defaults = KafkaSinkSettings(Connection(server.bootstrap), shape, marker_topic=f"{self.topic}-markers")
        self.settings = replace(defaults, **settings)

    def make(self) -> SinkBackend:
        return KafkaBackend(self.place, self.settings)

    def visible(self) -> list[dict[str, object]]:
        messages = read_topic(self.server.bootstrap, self.topic)
        rows: list[dict[str, object]] = [json.loads(message.value() or b"") for message in messages]
        assert [message.key() for message in messages] == [str(row["id"]).encode() for row in rows]
        return rows

    def leftovers(self) -> list[str]:
        assert self.place.store is not None
        transactions = open_transactions(self.server.bootstrap, self.topic)
        return [*self.place.store.list(""), *(f"open transaction in {partition}" for partition in transactions)]


@pytest.mark.claim("Thesis, table 4.1, Kafka")
class TestKafkaSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, kafka_server: KafkaServer, tmp_path: Path) -> SinkHarness:
        return Topic(kafka_server, tmp_path)


@pytest.fixture(scope="module")
def losses() -> Losses:
    return Losses(StepAnswers())


@pytest.mark.slow
@pytest.mark.long  # test_network_faults covers the most important answers
class TestKafkaSinkDegraded(SinkBackendContract):
    """Two shards and transactions of two records; the answer after each step is lost once, and calls are repeated."""

    @pytest.fixture
    def harness(self, kafka_server: KafkaServer, tmp_path: Path, losses: Losses) -> SinkHarness:
        return DegradedSinkHarness(Topic(kafka_server, tmp_path, shards=2, transaction_records=2), losses)
