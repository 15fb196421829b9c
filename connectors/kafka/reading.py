"""Tasks of the Kafka source. Each task reads exactly its ranges of offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int64, c_void_p, create_string_buffer
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError

from epochal.backends.kafka.connection import ANSWER_SECONDS, PASSING, Connection
from epochal.connectors.kafka.decoding import Columns
from epochal.connectors.kafka.library import CONSUMER, library
from epochal.connectors.kafka.offsets import OffsetRange
from epochal.connectors.kafka.records import Event, Fetched, Place, Records
from epochal.errors import EpochalError, SourceChanged, SourceUnavailable
from epochal.tasks.reporting import as_failure, encode, translated

BATCH = 10_000
POLL_SECONDS = 0.02
SILENCE_SECONDS = 60.0

_kept: dict[str, RecordConsumer] = {}
"""Cached consumers of the Python worker, by connection. Connecting takes longer than reading a small slice."""


@dataclass(frozen=True)
class ReadRanges:
    """Function for ``mapInArrow`` over indexes of groups of ranges."""

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
    """Iterator over the records of ranges of different partitions, in order within each partition.

    Reads a range until the consumer returns a record or end of partition at or after the range's end, as commit markers
    and aborted records use offsets but are not returned. ``parts``: parts to read in addition to values, as in
    :meth:`Fetched.records`. Raises ``SourceChanged`` if the broker has lost records, ``SourceUnavailable`` if it
    does not respond.
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
                self._notice(events)  # after the records, as an end of partition may arrive together with the last ones
            elif time.monotonic() - heard > SILENCE_SECONDS:
                waiting = next(iter(self._open.values()))
                raise SourceUnavailable(
                    f"Kafka at {self._connection.servers} returned no data for {SILENCE_SECONDS:g} s, while {waiting} "
                    "was being read. Check that its brokers run; the epoch is rerun."
                )

    def _taken(self, records: Records) -> Records:
        """The records that belong to the ranges. Closes the ranges that are complete."""
        kept = np.zeros(len(records), np.bool_)
        for index, place in enumerate(records.places):
            rows = np.flatnonzero(records.place == index)
            kept[rows] = self._new(place, records.offsets[rows])
        return records.only(kept)

    def _new(self, place: Place, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Mask of a partition's records that are in its range and after all records already read."""
        range = self._open.get(place)
        if range is None:  # left from an earlier assignment of the cached consumer
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
        except Exception as error:  # noqa: BLE001  any failure: the range is lost in any case
            there = f"the partition no longer exists ({translated(error).message.splitlines()[0]})"
        return SourceChanged(
            f"Kafka at {self._connection.servers} has lost a part of {range}, which was not read yet: {there}. "
            "Retention was too short, or the topic was recreated. Records are lost: start a new application or a "
            "fork, which begins with the existing records."
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
            # Otherwise librdkafka checks a full queue again only after a second.
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


_ERROR_BYTES = 512


class RecordConsumer:
    """Consumer that returns batches of records as columns.

    ``settings`` are librdkafka's, with ``_`` for ``.``; an invalid setting raises the connection's error. Later errors
    are returned as an :class:`Event`, or raised as translated by the ``connection``.
    """

    def __init__(self, connection: Connection, **settings: Any) -> None:
        self._connection = connection
        self._fetched = np.zeros(0, np.uint64)
        reason = create_string_buffer(_ERROR_BYTES)
        configuration = self._configuration(connection.settings(**settings))
        self._client = library().rd_kafka_new(CONSUMER, configuration, reason, _ERROR_BYTES)
        if not self._client:
            library().rd_kafka_conf_destroy(configuration)
            raise self._refused(reason.value)
        library().rd_kafka_poll_set_consumer(self._client)
        self._queue = library().rd_kafka_queue_get_consumer(self._client)

    def assign(self, places: Sequence[tuple[Place, int]]) -> None:
        """Assign exactly these partitions, from these offsets on."""
        with _partitions(places) as partitions:
            self._check(library().rd_kafka_assign(self._client, partitions), "assign partitions")

    def unassign(self, place: Place | None = None) -> None:
        """Remove this partition, or all partitions, from the assignment."""
        if place is None:
            self._check(library().rd_kafka_assign(self._client, None), "unassign all partitions")
            return
        with _partitions([(place, 0)]) as partitions:
            error = library().rd_kafka_incremental_unassign(self._client, partitions)
        if error:
            code = library().rd_kafka_error_code(error)
            library().rd_kafka_error_destroy(error)
            self._check(code, f"unassign {place}")

    def take(self, most: int, seconds: float, parts: Collection[str]) -> tuple[Records | None, list[Event]]:
        """Take up to ``most`` records and events that arrive within ``seconds``. ``parts``: see :class:`Fetched`."""
        if len(self._fetched) < most:
            self._fetched = np.zeros(most, np.uint64)
        number = library().rd_kafka_consume_batch_queue(
            self._queue, round(seconds * 1000), self._fetched.ctypes.data, most
        )
        if number <= 0:
            return None, []
        with Fetched(self._fetched[:number]) as fetched:
            return fetched.records(parts), fetched.events()

    def bounds(self, place: Place, seconds: float) -> tuple[int, int]:
        """Request the first existing offset and the end of a partition from the broker."""
        first, end = c_int64(), c_int64()
        code = library().rd_kafka_query_watermark_offsets(
            self._client, place[0].encode(), place[1], byref(first), byref(end), round(seconds * 1000)
        )
        self._check(code, f"look at {place}")
        return first.value, end.value

    def close(self) -> None:
        """Close the consumer and its connections."""
        library().rd_kafka_consumer_close(self._client)
        library().rd_kafka_queue_destroy(self._queue)
        library().rd_kafka_destroy(self._client)

    def _configuration(self, settings: dict[str, Any]) -> c_void_p:
        configuration, reason = library().rd_kafka_conf_new(), create_string_buffer(_ERROR_BYTES)
        # Disables librdkafka's logging to standard error; the errors also arrive as events.
        library().rd_kafka_conf_set_log_cb(configuration, None)
        for name, value in settings.items():
            if name in ("logger", "error_cb"):  # confluent-kafka's own
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if library().rd_kafka_conf_set(configuration, name.encode(), text.encode(), reason, _ERROR_BYTES) != 0:
                library().rd_kafka_conf_destroy(configuration)
                raise self._refused(reason.value)
        return configuration  # type: ignore[no-any-return]

    def _refused(self, reason: bytes) -> Exception:
        error = KafkaError(KafkaError._INVALID_ARG, reason.decode(errors="replace"))
        return self._connection.translate(error, "make a consumer")

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            text = library().rd_kafka_err2str(code).decode()
            raise self._connection.translate(KafkaError(code, text), what)


@contextmanager
def _partitions(places: Sequence[tuple[Place, int]]) -> Iterator[c_void_p]:
    """librdkafka's list of these partitions, freed at the end of the block."""
    found = library().rd_kafka_topic_partition_list_new(len(places))
    try:
        for (topic, partition), offset in places:
            library().rd_kafka_topic_partition_list_add(found, topic.encode(), partition)
            library().rd_kafka_topic_partition_list_set_offset(found, topic.encode(), partition, offset)
        yield found
    finally:
        library().rd_kafka_topic_partition_list_destroy(found)
