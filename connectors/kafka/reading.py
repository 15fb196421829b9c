"""The tasks of a Kafka source: each reads its ranges of offsets, exactly."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError

from epochal.backends.kafka.connection import ANSWER_SECONDS, PASSING, Connection
from epochal.connectors.kafka.consumer import RecordConsumer
from epochal.connectors.kafka.decoding import Columns
from epochal.connectors.kafka.offsets import OffsetRange
from epochal.connectors.kafka.records import Event, Place, Records
from epochal.errors import EpochalError, SourceChanged, SourceError
from epochal.tasks.reporting import as_failure, encode, translated

BATCH = 10_000
POLL_SECONDS = 0.02
SILENCE_SECONDS = 60.0

_kept: dict[str, RecordConsumer] = {}
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
        held: list[pa.RecordBatch] = []
        with RangeReader(self.connection, ranges, self.columns.parts) as reader:
            for records in filter(len, reader):
                held.append(self.columns.batch(records))
                if sum(map(len, held)) >= BATCH:
                    yield pa.concat_batches(held)
                    held = []
        if held:
            yield pa.concat_batches(held)


class RangeReader:
    """The records of some ranges, of different partitions, as they come; in order within each.

    A range is read until something at or after its end is met: commit records and aborted ones take up offsets, and
    are never seen. ``parts``: what is read beside values, as :meth:`Fetched.records` has it. Raises ``SourceChanged``
    where the broker has lost a part, ``SourceError`` where it does not answer.
    """

    def __init__(self, connection: Connection, ranges: Sequence[OffsetRange], parts: Collection[str]) -> None:
        self._connection = connection
        self._parts = parts
        self._open = {(range.topic, range.partition): range for range in ranges}
        self._next = {(range.topic, range.partition): range.start for range in ranges}

    def __enter__(self) -> RangeReader:
        self._consumer = _consumer(self._connection)
        self._consumer.assign([(place, range.start) for place, range in self._open.items()])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._consumer.unassign()
        else:
            _forget(self._consumer)

    def __iter__(self) -> Iterator[Records]:
        heard = time.monotonic()
        while self._open:
            records, events = self._consumer.take(BATCH, POLL_SECONDS, self._parts)
            if records is not None:
                heard = time.monotonic()
                yield self._taken(records)
                self._notice(events)  # after the records: what has come to its end may have come with its last ones
            elif time.monotonic() - heard > SILENCE_SECONDS:
                waiting = next(iter(self._open.values()))
                raise SourceError(
                    f"Kafka at {self._connection.servers} gave nothing for {SILENCE_SECONDS:g} s, while {waiting} was "
                    "being read. See that its brokers run; the epoch is run again."
                )

    def _taken(self, records: Records) -> Records:
        """Those that belong to the ranges; and which ranges are at their end now."""
        kept = np.zeros(len(records), np.bool_)
        for index, place in enumerate(records.places):
            rows = np.flatnonzero(records.place == index)
            kept[rows] = self._new(place, records.offsets[rows])
        return records.only(kept)

    def _new(self, place: Place, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of a partition's records are to be read: of its range, and after all that were met before."""
        range = self._open.get(place)
        if range is None:  # the consumer, which lives on, was assigned it before
            return np.zeros(len(offsets), np.bool_)
        met = np.maximum.accumulate(np.concatenate([[self._next[place] - 1], offsets]))
        self._next[place] = int(met[-1]) + 1
        if met[-1] >= range.end - 1:
            self._close(place)
        return (offsets > met[:-1]) & (offsets < range.end)

    def _close(self, place: Place) -> None:
        if self._open.pop(place, None) is not None and self._open:
            self._consumer.unassign(place)

    def _notice(self, events: Sequence[Event]) -> None:
        for event in events:
            range = self._open.get(event.place) if event.place is not None else None
            if range is None and event.code != KafkaError._AUTHENTICATION:
                continue
            if event.code == KafkaError._PARTITION_EOF:
                if range is not None and event.offset >= range.end:
                    self._close((range.topic, range.partition))
            elif event.code in _LOST and range is not None:
                raise self._lost(range)
            elif event.code not in PASSING:
                raise self._connection.translate(KafkaError(event.code, event.text), f"read {range}")

    def _lost(self, range: OffsetRange) -> SourceChanged:
        try:
            first, end = self._consumer.bounds((range.topic, range.partition), ANSWER_SECONDS)
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


def _consumer(connection: Connection) -> RecordConsumer:
    key = f"{connection.servers} {sorted(connection.options.items(), key=str)}"
    if key not in _kept:
        settings = {
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
        _kept[key] = RecordConsumer(connection, **settings)
    return _kept[key]


def _forget(consumer: RecordConsumer) -> None:
    for key, kept in list(_kept.items()):
        if kept is consumer:
            del _kept[key]
    consumer.close()
