"""T1 to T3: processing of the sink's rows in a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from epochal.backends.earlier_manifests import manifests_of
from epochal.backends.kafka.connection import Connection, kafka_error
from epochal.backends.kafka.producers import RecordProducer
from epochal.backends.kafka.records import RECORD, RecordShape, key_text, sizes
from epochal.backends.kafka.topics import Topics
from epochal.backends.write_ahead_log import LogWriter, WriteAheadLog
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.configuration import DELIVERY
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import EpochalError, RowRejected, SinkError
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

_sizes_known: dict[tuple[str, str], int] = {}
"""Maximum record sizes by servers and topic, in each Python worker."""
_direct_producers: dict[tuple[str, str], RecordProducer] = {}


@dataclass(frozen=True)
class RecordCheck:
    """Rejects, before pre-commit, records that the broker would reject after the decision.

    ``largest``: limits that the driver has read for the sink's own topic; those of other topics are read on first use.
    """

    sink: str
    connection: Connection
    topic: str | None
    largest: Mapping[str, int]

    def check(self, records: pa.RecordBatch) -> None:
        """Raises ``RowRejected`` naming the key of a record that is too large, or a topic that a row names and that is
        missing; ``SinkError`` if the sink's own topic is missing."""
        if not records.num_rows:
            return
        bytes = sizes(records)
        for topic, mask in self._by_topic(records):
            limit = self._largest(topic)
            mine = bytes if mask is None else pc.if_else(mask, bytes, 0)
            largest = pc.max(mine).as_py()
            if largest > limit:
                row = pc.index(mine, largest).as_py()
                raise RowRejected(
                    f"{self.sink}: the record with key {key_text(records.column('key')[row].as_py())} has {largest} "
                    f"bytes; the maximum of topic {topic} is {limit}. Reduce it, or raise the topic's "
                    "max.message.bytes."
                )

    def _by_topic(self, records: pa.RecordBatch) -> list[tuple[str, Any]]:
        topics = records.column("topic")
        if topics.null_count == records.num_rows:
            return [(str(self.topic), None)]
        filled = topics if self.topic is None else pc.fill_null(topics, self.topic)
        return [(name, pc.equal(filled, name)) for name in pc.unique(filled).to_pylist()]

    def _largest(self, topic: str) -> int:
        known = self.largest.get(topic) or _sizes_known.get((self.connection.servers, topic))
        if known is None:
            topics = Topics(self.connection)
            if topic not in topics.find([topic]):
                kind = SinkError if topic == self.topic else RowRejected
                raise kind(
                    f"{self.sink}: a row is for topic {topic!r}, which Kafka at {self.connection.servers} does not "
                    "have. Create the topic, or correct the column that names it."
                )
            known = _sizes_known[self.connection.servers, topic] = topics.largest_record(topic)
        return known


class LoggedTransaction(SinkTransaction):
    """Exactly once: records go to the log."""

    def __init__(self, shape: RecordShape, check: RecordCheck, log: WriteAheadLog, task: TaskScope) -> None:
        self._shape = shape
        self._check = check
        self._writer: LogWriter = log.open(task, RECORD)

    def write(self, batch: pa.RecordBatch) -> None:
        records = self._shape.encode(self._check.sink, batch)
        self._check.check(records)
        self._writer.write(records)

    def pre_commit(self) -> Handle:
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()


class DirectTransaction(SinkTransaction):
    """At least once: the task writes records to Kafka; they stay visible whatever the outcome of the epoch."""

    def __init__(self, shape: RecordShape, check: RecordCheck, seconds: float, task: TaskScope) -> None:
        self._shape = shape
        self._check = check
        self._seconds = seconds
        self._task = task
        self._producer: RecordProducer | None = None
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        records = self._shape.encode(self._check.sink, batch)
        self._check.check(records)
        with self._given_up_on_error("write"):
            self._producer = self._producer or self._open()
            self._producer.produce(records, self._check.topic)
        self._rows += records.num_rows
        self._bytes += int(pc.sum(sizes(records)).as_py())

    def pre_commit(self) -> Handle:
        with self._given_up_on_error("write"):
            if self._producer is not None and not self._producer.flush(self._seconds):
                raise SinkError(
                    f"{self._check.sink}: Kafka at {self._check.connection.servers} did not take all records within "
                    f"{self._seconds:g} s. The epoch is rerun; its records may then be duplicated."
                )
            if self._producer is not None and self._producer.refused:
                raise SinkError(f"{self._check.sink}: Kafka refused {self._producer.refused}. The epoch is rerun.")
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=self._rows,
            bytes=self._bytes,
            payload={DELIVERY: "at_least_once"},
        )

    def discard(self) -> None:
        self._forget()

    def _open(self) -> RecordProducer:
        """Return the Python worker's producer, reused by later tasks: connecting costs more than a small epoch."""
        key = self._check.connection.servers, repr(sorted(self._check.connection.options.items(), key=str))
        if key not in _direct_producers:
            largest = self._check.largest.get(self._check.topic or "")
            milliseconds = int(self._seconds * 1000)
            _direct_producers[key] = RecordProducer(self._check.connection, largest, message_timeout_ms=milliseconds)
        return _direct_producers[key]

    @contextmanager
    def _given_up_on_error(self, what: str) -> Iterator[None]:
        """Discard the producer after any error in the block: it may still hold records of this task."""
        try:
            yield
        except KafkaException as error:
            self._forget()
            raise self._check.connection.translate(kafka_error(error), what) from error
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        producer, self._producer = self._producer, None
        for key, kept in list(_direct_producers.items()):
            if kept is producer:
                del _direct_producers[key]
        if producer is not None:
            producer.abandon()


def may_begin(store: SnapshotStore, epoch: EpochScope, sink: str) -> bool:
    """Return whether earlier epochs need no marker: the parent's manifest has no such sink, or its tasks wrote
    directly to the topic. ``False`` if this cannot be determined."""
    parent = epoch.parent
    if parent is None:
        return True
    try:
        manifests = manifests_of(store, parent)
    except (EpochalError, ValueError):
        return False
    return bool(manifests) and all(_left_no_marker(manifest, sink) for manifest in manifests)


def _left_no_marker(manifest: Manifest, sink: str) -> bool:
    if sink not in manifest.sinks:
        return True
    handles = manifest.sinks[sink].handles
    return bool(handles) and all(DELIVERY in handle.payload for handle in handles)
