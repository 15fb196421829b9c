"""The marker of a shard: the last record of each of its transactions, in a compacted topic, keyed by transactional id.

It records in Kafka, in the same transaction, the epoch up to which the sink's records are committed. It is always in
partition 0: adding partitions to the topic later must not lose it.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pydantic import BaseModel, ConfigDict, ValidationError

from epochal.backends.kafka.connection import ANSWER_SECONDS, Connection
from epochal.backends.kafka.topics import Topics
from epochal.errors import SinkError

PARTITION = 0
SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments: a reader starts at the beginning, so superseded markers should be compacted soon.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}


class Marker(BaseModel):
    """The first ``rows`` records of ``epoch`` are committed; with ``complete``, all (a large epoch is cut in chunks).

    ``sha256``: sha256 of the epoch's handles. ``shards`` must not change: it determines the transaction that holds a
    record."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    epoch: int
    attempt: int
    rows: int
    complete: bool
    sha256: str
    shards: int

    def encode(self) -> bytes:
        return self.model_dump_json().encode()


def ensure_topic(topics: Topics, name: str) -> None:
    """Create the markers' topic, or check that it is compacted. Raises ``SinkError``."""
    if name not in topics.find([name]):
        topics.create(name, partitions=1, settings=SETTINGS)
    policy = (topics.settings(name) or {}).get("cleanup.policy", "compact")
    if policy != "compact":
        raise SinkError(
            f"The marker topic {name} has cleanup.policy={policy}: Kafka would delete markers, and with them the "
            "record of what has been written. Set cleanup.policy=compact, or name another topic (marker_topic)."
        )


def read_marker(connection: Connection, topic: str, key: str, wait: bool) -> Marker | None:
    """Return the committed marker of a transactional id; ``None`` if none exists.

    Its producer must already have been fenced. An open transaction of another sink in the topic hides later records:
    with ``wait`` the call waits for its end; otherwise it raises ``StillOpen`` immediately.
    """
    with connection.translated(f"read the marker topic {topic}"):
        end = _end(connection, topic, "read_uncommitted")
        if end == 0:
            return None
        if not wait and _end(connection, topic, "read_committed") < end:
            raise StillOpen(f"A transaction is open in {topic}.")
        return _decode(topic, key, _last_value(connection, topic, key.encode(), end))


class StillOpen(SinkError):
    """The marker cannot be read yet: a transaction is open in its topic."""


def _end(connection: Connection, topic: str, isolation: str) -> int:
    consumer = Consumer(_settings(connection, isolation))
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, PARTITION), ANSWER_SECONDS, cached=False)
        return int(end)
    finally:
        consumer.close()


def _last_value(connection: Connection, topic: str, key: bytes, end: int) -> bytes | None:
    """Read the whole topic up to ``end``; raise if only a part of it can be read."""
    consumer = Consumer(_settings(connection, "read_committed"))
    value: bytes | None = None
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        consumer.assign([TopicPartition(topic, PARTITION, 0)])
        while True:
            for message in consumer.consume(1000, 0.02):
                deadline = max(deadline, time.monotonic() + ANSWER_SECONDS / 3)
                if message.error() is None and message.key() == key and _offset(message) < end:
                    value = message.value()
                if _reached(message, end):
                    return value
            if time.monotonic() > deadline:
                raise StillOpen(
                    f"The marker topic {topic} cannot be read to its end: a transaction of another producer is open in "
                    "it. It ends at the latest with that producer's transaction timeout; the read is retried."
                )
    finally:
        consumer.close()


def _reached(message: Message[Any, Any], end: int) -> bool:
    """Return whether no committed record can follow before ``end``. Commit records occupy offsets, but are
    invisible."""
    error = message.error()
    if error is None:
        return _offset(message) >= end - 1
    if error.code() == KafkaError._PARTITION_EOF:
        return _offset(message) >= end
    return False


def _offset(message: Message[Any, Any]) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _decode(topic: str, key: str, value: bytes | None) -> Marker | None:
    if value is None:
        return None
    try:
        return Marker.model_validate_json(value)
    except ValidationError as error:
        raise SinkError(
            f"The marker {key} in topic {topic} cannot be read: {error.errors()[0]['msg']}. Another program writes to "
            "that topic; give the sink a separate one (marker_topic)."
        ) from None


def _settings(connection: Connection, isolation: str) -> dict[str, Any]:
    return connection.settings(
        group_id="epochal-markers",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
        isolation_level=isolation,
        fetch_wait_max_ms=10,
    )
