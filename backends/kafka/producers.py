"""Producers: the settings that the protocol requires, and records from Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from epochal.backends.kafka.connection import Connection, kafka_error
from epochal.backends.kafka.records import key_text

QUEUE_FULL_SECONDS = 0.05
PATIENCE_SECONDS = 0.5
LARGEST_BATCH = 1_000_000
LARGEST_REQUEST = 100_000_000
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)

Headers = list[tuple[str, str | bytes | None]]
Row = tuple[str, int, bytes | None, bytes | None, Headers | None, int]


class RecordProducer:
    """Producer of confluent-kafka that takes whole batches, in order, and records the first refusal by the broker."""

    def __init__(self, connection: Connection, largest_record: int | None, **settings: Any) -> None:
        settings, self.complaints = connection.watched(
            # As Kafka's Java producer chooses: equal keys go to the same partition, whichever client writes them.
            partitioner="murmur2_random",
            acks="all",
            enable_idempotence=True,
            message_max_bytes=largest_record or LARGEST_REQUEST,
            queue_buffering_max_messages=500_000,
            **{
                "linger_ms": 5,
                "batch_size": min(largest_record or LARGEST_BATCH, LARGEST_BATCH),
                "queue_buffering_max_kbytes": 262_144,
                **connection.options,
            },
            **settings,
        )
        settings["delivery.report.only.error"] = True
        self._refusals = _Refusals()
        settings["on_delivery"] = self._refusals.record
        self.client = Producer(settings)

    @property
    def refused(self) -> str | None:
        """The first record that the broker refused, and the reason."""
        return self._refusals.first

    def produce(self, records: pa.RecordBatch, topic: str | None) -> None:
        """Queue all records. Waits while the queue is full. Raises ``KafkaException`` of the first failure."""
        produce = self.client.produce
        for row in rows(records, topic):
            try:
                # By position: with names, a call costs half as much again.
                produce(row[0], row[3], row[2], row[1], None, None, row[5], row[4])
            except BufferError:
                self.put(row)
        self.client.poll(0)

    def put(self, row: Row) -> None:
        """Queue one record, as soon as the queue has room."""
        topic, partition, key, value, headers, timestamp = row
        while True:
            try:
                self.client.produce(topic, value, key, partition, None, None, timestamp, headers)
                return
            except BufferError:
                self.client.poll(QUEUE_FULL_SECONDS)
                if self.complaints.hopeless:
                    raise KafkaException(self.complaints.last) from None

    def cause(self, error: KafkaError) -> KafkaError:
        """Return the cause of a failed transaction, where ``error`` reports only its invalid state.

        A record is refused in the background. The next call then meets a transaction that can only be aborted: to a
        record the client answers "erroneous state"; to another transaction it answers with the reason.
        """
        if error.code() != KafkaError._STATE:
            return error
        try:
            self.client.begin_transaction()
        except KafkaException as refused:
            return kafka_error(refused)
        return error

    def flush(self, seconds: float) -> bool:
        """Wait until every record is acknowledged; return ``False`` on timeout."""
        deadline = time.monotonic() + seconds
        while self.client.flush(PATIENCE_SECONDS):
            if self.complaints.hopeless or time.monotonic() > deadline:
                return False
        return True

    def patiently(self, call: Callable[[float], None], seconds: float) -> None:
        """Repeat a resumable call of the client until it succeeds, fails for good, or times out."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return call(PATIENCE_SECONDS)
            except KafkaException as error:
                self.client.poll(0)
                if not kafka_error(error).retriable() or self.complaints.hopeless or time.monotonic() > deadline:
                    raise

    def abandon(self) -> None:
        """Discard the queued records and those in flight."""
        try:
            self.client.purge()
            self.client.poll(0)
        except KafkaException:
            return


class _Refusals:
    """The first refused record. Records that are purged, or fail with their transaction, do not count."""

    def __init__(self) -> None:
        self.first: str | None = None

    def record(self, error: KafkaError | None, message: Message[Any, Any]) -> None:
        if error is not None and self.first is None and error.code() in _REFUSED:
            self.first = f"the record with key {key_text(message.key())} for topic {message.topic()}: {error.str()}"


def rows(records: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """Return the records of a batch as the client takes them. Columns without values are not converted row by row."""
    count = records.num_rows
    columns = [
        [default] * count if column.null_count == count else _values(column, default)
        for column, default in zip(records.columns, (topic, -1, None, None, None, 0), strict=True)
    ]
    if records.column("headers").null_count < count:
        columns[4] = [_headers(entries) for entries in columns[4]]
    found: Iterator[Row] = zip(*columns, strict=True)
    return found


def _values(column: pa.Array, default: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if default is None or not column.null_count:
        return values
    return [default if value is None else value for value in values]


def _headers(entries: Any) -> Headers | None:
    return None if entries is None else [(entry["name"], entry["value"]) for entry in entries]
