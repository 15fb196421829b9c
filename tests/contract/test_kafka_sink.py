"""The Kafka sink keeps the contract of sinks, with a real broker: also when answers are lost and calls come twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.backends.kafka.backend import KafkaBackend, KafkaSinkSettings
from epochal.backends.kafka.connection import Connection
from epochal.backends.kafka.encoding import JsonEncoder
from epochal.backends.kafka.records import RecordShape
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.faults import FaultPoint, injected
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkBackendContract, SinkHarness
from epochal.testing.kafka_reading import open_transactions, read_topic
from epochal.testing.servers.kafka import KafkaServer

pytestmark = pytest.mark.server

Make = Callable[[SinkPlace, KafkaSinkSettings], SinkBackend]


class Topic(SinkHarness):
    """A topic and a marker topic of its own, read without Epochal: what a read_committed reader sees is visible."""

    def __init__(self, server: KafkaServer, folder: Path, make: Make = KafkaBackend, **settings: Any) -> None:
        self.server = server
        self.topic = server.create_topic(partitions=3)
        self.place = SinkPlace("out", SnapshotStore(str(folder / "store")))
        shape = RecordShape(JsonEncoder(), self.topic, key=("id",))
        defaults = KafkaSinkSettings(Connection(server.bootstrap), shape, marker_topic=f"{self.topic}-markers")
        self.settings = replace(defaults, **settings)
        self._make = make

    def make(self) -> SinkBackend:
        return self._make(self.place, self.settings)

    def visible(self) -> list[dict[str, object]]:
        messages = read_topic(self.server.bootstrap, self.topic)
        rows: list[dict[str, object]] = [json.loads(message.value() or b"") for message in messages]
        assert [message.key() for message in messages] == [str(row["id"]).encode() for row in rows]
        return rows

    def leftovers(self) -> list[str]:
        assert self.place.store is not None
        transactions = open_transactions(self.server.bootstrap, self.topic)
        return [*self.place.store.list(""), *(f"open transaction in {partition}" for partition in transactions)]


class TestKafkaSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, kafka_server: KafkaServer, tmp_path: Path) -> SinkHarness:
        return Topic(kafka_server, tmp_path)


class Degraded(KafkaBackend):
    """Every commit loses its answer at one step after the other, each time as a new process, and is called twice."""

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for step in ("E5.kafka.chunk-committed", "E5.kafka.committed"):
            with suppress(AnswerLost), lost_answer(step):
                KafkaBackend(self._place, self._settings).commit(epoch, handles)
        last = KafkaBackend(self._place, self._settings)
        last.commit(epoch, handles)
        last.commit(epoch, handles)


class AnswerLost(Exception):
    """What was done is done, but nobody hears of it."""


@contextmanager
def lost_answer(step: str) -> Iterator[None]:
    """In the block, the first answer after ``step`` is lost."""
    lost: list[str] = []

    def lose(point: FaultPoint, epoch: int | None) -> None:
        if point.name == step and not lost:
            lost.append(point.name)
            raise AnswerLost(step)

    with injected(lose):
        yield


@pytest.mark.slow
class TestKafkaSinkDegraded(SinkBackendContract):
    """Two shards, transactions of two records, lost answers, calls made twice, a process of its own for each call."""

    @pytest.fixture
    def harness(self, kafka_server: KafkaServer, tmp_path: Path) -> SinkHarness:
        return Topic(kafka_server, tmp_path, Degraded, shards=2, transaction_records=2)
