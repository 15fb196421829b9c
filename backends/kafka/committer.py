"""E5 of one shard: fence, read the marker, and write records and marker in one transaction.

A producer lives for one attempt, together with the last marker that it wrote: no other producer can have written one
since, or the broker would have fenced this one. After any ambiguous result the producer is discarded, and the next call
begins with fencing again; the state that the broker then shows is authoritative.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from epochal.backends.kafka.connection import ANSWER_SECONDS, Connection, kafka_error
from epochal.backends.kafka.marker import PARTITION, Marker, StillOpen, read_marker
from epochal.backends.kafka.producers import RecordProducer
from epochal.errors import EpochalError, Fenced, FileMissing, OutcomeUnknown, SinkAhead, SinkError
from epochal.faults import declare

FENCING = declare("E5.kafka.fencing", "there is no producer: earlier ones are about to be fenced")
FENCED = declare("E5.kafka.fenced", "earlier producers are fenced, their open transactions are aborted")
MARKER_READ = declare("E5.kafka.marker-read", "the marker has been read, after fencing")
BEGUN = declare("E5.kafka.begun", "the transaction has begun and is empty")
PRODUCED = declare("E5.kafka.produced", "all records are produced, the marker is not")
MARKED = declare("E5.kafka.marked", "records and marker are produced, the transaction is open")
COMMITTED = declare("E5.kafka.committed", "the broker has committed the transaction")
CHUNK_COMMITTED = declare(
    "E5.kafka.chunk-committed", "a part of an epoch that is too large for one transaction is committed"
)

_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
TRIES_AFTER_FENCING = 3


@dataclass(frozen=True)
class ShardPlace:
    """Location of a shard: its transactional id and its marker topic. ``limit``: maximum records per transaction."""

    connection: Connection
    transactional_id: str
    marker_topic: str
    application: str
    shards: int
    largest_record: int | None
    timeout_seconds: float
    limit: int


@dataclass(frozen=True)
class ShardWork:
    """Part of an epoch that belongs to one shard. ``parent`` ``None``: no marker may exist yet."""

    epoch: int
    parent: int | None
    rows: int
    sha256: str
    topic: str | None
    batches: Callable[[], Iterator[pa.RecordBatch]]
    may_begin: Callable[[], bool] = lambda: False
    """Called if the marker does not name the parent: returns whether the sink is new, or delivered at least once until
    now."""


class ShardCommitter:
    """One transactional id in one attempt. Used by one thread at a time; never serialised."""

    def __init__(self, place: ShardPlace, attempt: int) -> None:
        self._place = place
        self._attempt = attempt
        self._producer: RecordProducer | None = None
        self._marker: Marker | None = None
        self._marker_known = False
        self._highest: int | None = None

    def take_over(self, head: int) -> None:
        """R1: fence earlier producers, and check that the marker is not ahead of ``head``, the latest decided epoch.

        While a transaction of another sink is open in the marker topic, the marker is left to the first commit: the
        other sink's own R1, which follows, ends that transaction.
        """
        self._highest = head
        with self._one_try("take over"):
            self._fence()
            try:
                self._read(wait=False)
            except StillOpen:
                self._marker_known = False

    def commit(self, work: ShardWork) -> None:
        """Make the epoch's records visible, once. Raises ``Fenced``, ``OutcomeUnknown`` or ``SinkError``."""
        if self._highest is not None:
            self._highest = max(self._highest, work.epoch)
        for _ in range(TRIES_AFTER_FENCING):
            was_kept = self._marker_known
            try:
                with self._one_try(f"commit epoch {work.epoch}"):
                    self._commit(work)
                    return
            except _LostProducer:
                # A zombie may have committed: the marker, read after fencing it, determines the owner of the shard.
                continue
            except FileMissing:
                # Another process may have applied and removed the log: then the marker, read again, shows it.
                if not was_kept:
                    raise
        raise OutcomeUnknown(
            f"{self._where()}: another producer took the shard over {TRIES_AFTER_FENCING} times while epoch "
            f"{work.epoch} was being committed. The commit is retried; check that no second driver of this branch runs."
        )

    def close(self) -> None:
        """Release the producer. The next producer aborts its open transaction."""
        producer, self._producer = self._producer, None
        self._marker, self._marker_known = None, False
        if producer is not None:
            producer.abandon()

    def _commit(self, work: ShardWork) -> None:
        if self._producer is None:
            self._fence()
        if not self._marker_known:
            self._read(wait=True)
        marker = self._marker
        if marker is not None and marker.epoch >= work.epoch and marker.complete:
            self._check_same(marker, work)
            return
        self._apply(work, self._rows_done(marker, work))

    def _fence(self) -> None:
        self._producer = None
        FENCING.hit()
        milliseconds = int(self._place.timeout_seconds * 1000)
        producer = RecordProducer(
            self._place.connection,
            self._place.largest_record,
            transactional_id=self._place.transactional_id,
            transaction_timeout_ms=milliseconds,
            message_timeout_ms=milliseconds,
        )
        self._producer = producer
        producer.patiently(producer.client.init_transactions, ANSWER_SECONDS)
        self._marker_known = False
        FENCED.hit()

    def _read(self, wait: bool) -> None:
        place = self._place
        marker = read_marker(place.connection, place.marker_topic, place.transactional_id, wait)
        MARKER_READ.hit()
        if marker is not None:
            self._check_read(marker)
        self._marker, self._marker_known = marker, True

    def _check_read(self, marker: Marker) -> None:
        if marker.attempt > self._attempt:
            raise Fenced(
                f"{self._where()}: attempt {marker.attempt} has taken over; this is attempt {self._attempt}, which "
                "must stop."
            )
        if self._highest is not None and marker.epoch > self._highest:
            where = f"{self._where()}: Kafka"
            raise SinkAhead.of(where, marker.epoch, self._place.application, self._highest)
        if marker.shards != self._place.shards:
            raise SinkError(
                f"{self._where()}: the sink was started with shards={marker.shards}, and now has "
                f"{self._place.shards}. Keep the number: it determines which transaction contains a record."
            )

    def _check_same(self, marker: Marker, work: ShardWork) -> None:
        """Check that the marker has the same records. An epoch without rows may be one that an administrator gave
        up; its existing records are then accepted."""
        given_up = work.rows == 0 or (marker.complete and marker.rows == 0)
        if marker.epoch == work.epoch and marker.sha256 != work.sha256 and not given_up:
            raise SinkError(
                f"{self._where()}: Kafka holds epoch {work.epoch} with other records than the application decided. "
                "Two stores use the same branch: determine which one is correct, and start the other on a new branch."
            )

    def _rows_done(self, marker: Marker | None, work: ShardWork) -> int:
        """Return how many of the epoch's records are already committed. Raises ``SinkError`` if the marker does not
        fit."""
        if marker is not None and marker.epoch == work.epoch:
            self._check_same(marker, work)
            return marker.rows
        if marker is None and work.parent is None:
            return 0
        if marker is not None and marker.epoch == work.parent and marker.complete:
            return 0
        if (marker is None or marker.complete) and work.parent is not None and work.may_begin():
            return 0
        found = "is missing" if marker is None else f"names epoch {marker.epoch}"
        expected = f"epoch {work.parent}" if work.parent is not None else "no epoch yet"
        raise SinkError(
            f"{self._where()}: its marker in topic {self._place.marker_topic} {found}, but {expected} is required: "
            f"writing epoch {work.epoch} would lose or duplicate records. Restore the marker topic (it must be "
            "compacted, and never cleared), or give the sink another name; it then starts with an empty marker."
        )

    def _apply(self, work: ShardWork, done: int) -> None:
        """Apply the epoch in one transaction, or in several if it exceeds the limit or would outlast the timeout."""
        producer = self._current()
        producer.client.begin_transaction()
        BEGUN.hit(work.epoch)
        began, open_rows = time.monotonic(), 0
        for batch in _after(work.batches(), done):
            full = open_rows + batch.num_rows > self._place.limit
            if open_rows and (full or time.monotonic() - began > self._place.timeout_seconds / 2):
                self._end_transaction(work, done, complete=False)
                CHUNK_COMMITTED.hit(work.epoch)
                producer.client.begin_transaction()
                began, open_rows = time.monotonic(), 0
            producer.produce(batch, work.topic)
            open_rows += batch.num_rows
            done += batch.num_rows
        PRODUCED.hit(work.epoch)
        self._end_transaction(work, done, complete=True)

    def _end_transaction(self, work: ShardWork, rows: int, complete: bool) -> None:
        producer, place = self._current(), self._place
        marker = Marker(
            epoch=work.epoch,
            attempt=self._attempt,
            rows=rows,
            complete=complete,
            sha256=work.sha256,
            shards=place.shards,
        )
        producer.put((place.marker_topic, PARTITION, place.transactional_id.encode(), marker.encode(), None, 0))
        MARKED.hit(work.epoch)
        producer.patiently(producer.client.commit_transaction, place.timeout_seconds)
        COMMITTED.hit(work.epoch)
        self._marker = marker

    def _current(self) -> RecordProducer:
        if self._producer is None:
            raise OutcomeUnknown(f"{self._where()}: there is no producer. The commit is retried.")
        return self._producer

    @contextmanager
    def _one_try(self, what: str) -> Iterator[None]:
        """Close the producer after any error in the block."""
        try:
            yield
        except KafkaException as error:
            translated = self._translated(kafka_error(error), what)
            self.close()
            raise translated from error
        except BaseException:
            self.close()
            raise

    def _translated(self, error: KafkaError, what: str) -> EpochalError:
        producer = self._producer
        if producer is not None:
            error = producer.cause(error)
        if error.code() in _FENCED:
            return _LostProducer(f"{self._where()}: another producer has taken over.")
        if producer is not None and producer.refused and error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return SinkError(
                f"{self._where()}: could not {what}: Kafka refused {producer.refused}. No record of the epoch is "
                "visible. Raise the topic's max.message.bytes, or see the broker's log; the commit is retried."
            )
        return self._place.connection.translate(error, what, producer.complaints.last if producer else None)

    def _where(self) -> str:
        return f"Kafka sink {self._place.transactional_id}"


class _LostProducer(OutcomeUnknown):
    """The broker has fenced the producer."""


def _after(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Return the batches without the first ``rows`` rows."""
    for batch in batches:
        if rows >= batch.num_rows:
            rows -= batch.num_rows
        else:
            yield batch.slice(rows)
            rows = 0
