"""Reading Kafka topics like a reader without Epochal."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

Isolation = Literal["read_committed", "read_uncommitted"]
SECONDS = 30.0
SETTLING = 10.0


def read_topic(servers: str, topic: str, isolation: Isolation = "read_committed") -> list[Message[Any, Any]]:
    """All current records, partition by partition, in order.

    They include everything that was committed before the call: see :func:`open_transactions`.
    """
    if isolation == "read_committed":
        open_transactions(servers, topic)
    consumer = _consumer(servers, isolation)
    try:
        return [message for partition in _partitions(consumer, topic) for message in _read(consumer, topic, partition)]
    finally:
        consumer.close()


def open_transactions(servers: str, topic: str) -> list[int]:
    """The partitions whose end is invisible for a read_committed reader because of an open transaction.

    A broker answers a commit when its coordinator has logged it, and writes it to the partitions later: a transaction
    counts as open if it stays open for ``SETTLING`` seconds.
    """
    committed, uncommitted = _consumer(servers, "read_committed"), _consumer(servers, "read_uncommitted")
    deadline = time.monotonic() + SETTLING
    try:
        found = _partitions(committed, topic)
        while True:
            found = [
                partition
                for partition in found
                if _end(committed, topic, partition) < _end(uncommitted, topic, partition)
            ]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)
    finally:
        committed.close()
        uncommitted.close()


class Watcher:
    """A read_committed reader that reads continuously and records everything that was visible."""

    def __init__(self, servers: str, topic: str) -> None:
        self.seen: list[tuple[int, int, bytes | None]] = []
        """Partition, offset and value, in the order of visibility."""
        self._consumer = _consumer(servers, "read_committed")
        partitions = _partitions(self._consumer, topic)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is None:
                    self.seen.append((message.partition() or 0, message.offset() or 0, message.value()))


def _read(consumer: Consumer, topic: str, partition: int) -> list[Message[Any, Any]]:
    end = _end(consumer, topic, partition)
    found: list[Message[Any, Any]] = []
    if end == 0:
        return found
    consumer.assign([TopicPartition(topic, partition, 0)])
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.02):
            error, offset = message.error(), message.offset() or 0
            if error is None and offset < end:
                found.append(message)
            at_end = offset >= end if error is not None else offset >= end - 1
            if at_end and (error is None or error.code() == KafkaError._PARTITION_EOF):
                return found
    raise AssertionError(f"{topic}, partition {partition}, could not be read to {end} within {SECONDS:g} s")


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, SECONDS).topics[topic].partitions)


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS, cached=False)
    return int(end)


def _consumer(servers: str, isolation: Isolation) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
