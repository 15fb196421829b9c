"""The tasks of a Kafka source: each reads its ranges of offsets, exactly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from epochal.backends.kafka.connection import ANSWER_SECONDS, PASSING, Connection
from epochal.connectors.kafka.decoding import Columns
from epochal.connectors.kafka.offsets import OffsetRange
from epochal.errors import EpochalError, SourceChanged, SourceError
from epochal.tasks.reporting import as_failure, encode, translated

BATCH = 10_000
POLL_SECONDS = 0.02
SILENCE_SECONDS = 60.0

_kept: dict[str, Consumer] = {}
"""One consumer for each connection, kept by the Python worker: to connect takes longer than to read a small slice."""


@dataclass(frozen=True)
class ReadRanges:
    """For ``mapInArrow`` over ids of groups of ranges."""

    connection: Connection
    groups: tuple[tuple[OffsetRange, ...], ...]
    columns: Columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                try:
                    yield from self._read(self.groups[group])
                except EpochalError as error:
                    raise type(error)(f"{error.message}\n{encode(as_failure(error, 'T2'))}") from error

    def _read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        held: list[Message[Any, Any]] = []
        with RangeReader(self.connection, ranges) as reader:
            for messages in reader:
                held += messages
                if len(held) >= BATCH:
                    yield self.columns.batch(held)
                    held = []
        if held:
            yield self.columns.batch(held)


class RangeReader:
    """The messages of some ranges, of different partitions, as they come; in order within each.

    A range is read until something at or after its end is met: commit records and aborted ones take up offsets, and
    are never seen. Raises ``SourceChanged`` where the broker has lost a part, ``SourceError`` where it does not answer.
    """

    def __init__(self, connection: Connection, ranges: Sequence[OffsetRange]) -> None:
        self._connection = connection
        self._open = {(range.topic, range.partition): range for range in ranges}
        self._single = ranges[0] if len(ranges) == 1 else None
        self._next = {(range.topic, range.partition): range.start for range in ranges}

    def __enter__(self) -> RangeReader:
        self._consumer = _consumer(self._connection)
        self._consumer.assign([TopicPartition(*place, range.start) for place, range in self._open.items()])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._consumer.unassign()
        else:
            _forget(self._consumer)

    def __iter__(self) -> Iterator[list[Message[Any, Any]]]:
        heard = time.monotonic()
        while self._open:
            messages = self._consumer.consume(BATCH, POLL_SECONDS)
            if messages:
                heard = time.monotonic()
                yield self._taken(messages)
            elif time.monotonic() - heard > SILENCE_SECONDS:
                waiting = next(iter(self._open.values()))
                raise SourceError(
                    f"Kafka at {self._connection.servers} gave nothing for {SILENCE_SECONDS:g} s, while {waiting} was "
                    "being read. See that its brokers run; the epoch is run again."
                )

    def _taken(self, messages: list[Message[Any, Any]]) -> list[Message[Any, Any]]:
        """Those that belong to the ranges; and which ranges are at their end now."""
        good = [message for message in messages if message.error() is None]
        last: dict[tuple[str, int], int] = {}
        if self._single is not None and good and self._are_of(self._single, good):
            kept = good
            last[_partition_of(good[-1])] = _offset(good[-1])
        else:
            kept = []
            for message in good:
                place, offset = _partition_of(message), _offset(message)
                range = self._open.get(place)
                if range is None or offset <= last.get(place, self._next[place] - 1):
                    continue  # of what the consumer, which lives on, was assigned before
                if offset < range.end:
                    kept.append(message)
                last[place] = offset
        for place, offset in last.items():
            self._next[place] = offset + 1
            if place in self._open and offset >= self._open[place].end - 1:
                self._close(place)
        if len(good) < len(messages):  # after the records: what has come to its end may have come with its last ones
            self._notice([message for message in messages if message.error() is not None])
        return kept

    def _are_of(self, range: OffsetRange, messages: list[Message[Any, Any]]) -> bool:
        """Whether messages, which are in order, are all of what the range still lacks."""
        first, last, place = messages[0], messages[-1], (range.topic, range.partition)
        if _partition_of(first) != place or _partition_of(last) != place:
            return False
        return self._next[place] <= _offset(first) <= _offset(last) < range.end

    def _close(self, place: tuple[str, int]) -> None:
        if self._open.pop(place, None) is not None and self._open:
            self._consumer.incremental_unassign([TopicPartition(*place)])

    def _notice(self, events: Sequence[Message[Any, Any]]) -> None:
        for event in events:
            error, place = event.error(), _partition_of(event)
            range = self._open.get(place)
            if error is None or (range is None and error.code() != KafkaError._AUTHENTICATION):
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                if range is not None and _offset(event) >= range.end:
                    self._close(place)
            elif error.code() in _LOST and range is not None:
                raise self._lost(range)
            elif error.code() not in PASSING:
                raise self._connection.translate(error, f"read {range}")

    def _lost(self, range: OffsetRange) -> SourceChanged:
        place = TopicPartition(range.topic, range.partition)
        try:
            first, end = self._consumer.get_watermark_offsets(place, ANSWER_SECONDS, cached=False)
            there = f"Kafka has offsets {first} to {end} now"
        except Exception as error:  # noqa: BLE001  why it cannot be said does not matter: the range is lost
            there = f"there is no such partition any more ({translated(error).message.splitlines()[0]})"
        return SourceChanged(
            f"Kafka at {self._connection.servers} has lost a part of {range}, which was not read yet: {there}. "
            "Retention was too short, or the topic was made again. Records are missing: start a new application or "
            "fork, which begins with what is there."
        )


_LOST = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)


def _partition_of(message: Message[Any, Any]) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def _offset(message: Message[Any, Any]) -> int:
    return message.offset() or 0


def _consumer(connection: Connection) -> Consumer:
    key = f"{connection.servers} {sorted(connection.options.items(), key=str)}"
    if key not in _kept:
        _kept[key] = Consumer(
            connection.settings(
                **{
                    "fetch_wait_max_ms": 50,
                    "queued_min_messages": 50_000,
                    # Else a full queue is looked at again only after a second.
                    "fetch_queue_backoff_ms": 5,
                    "queued_max_messages_kbytes": 16_384,
                    **connection.options,
                    "group_id": "epochal",
                    "enable_auto_commit": False,
                    "enable_auto_offset_store": False,
                    "enable_partition_eof": True,
                    "auto_offset_reset": "error",
                    "isolation_level": "read_committed",
                }
            )
        )
    return _kept[key]


def _forget(consumer: Consumer) -> None:
    for key, kept in list(_kept.items()):
        if kept is consumer:
            del _kept[key]
    consumer.close()
