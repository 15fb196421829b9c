"""A consumer of given partitions that gives records by the batch, as columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int64, c_void_p, create_string_buffer
from typing import Any

import numpy as np
from confluent_kafka import KafkaError

from epochal.backends.kafka.connection import Connection
from epochal.connectors.kafka.library import CONSUMER, library
from epochal.connectors.kafka.records import Event, Fetched, Place, Records

_ERROR_BYTES = 512


class RecordConsumer:
    """``settings``: the library's, with ``_`` for ``.``. Raises the connection's error for one that it does not take.

    What goes wrong later comes as an :class:`Event`, or is raised as the ``connection`` translates it.
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
        """Read these partitions from these offsets on, and nothing else."""
        with _partitions(places) as partitions:
            self._check(library().rd_kafka_assign(self._client, partitions), "assign partitions")

    def unassign(self, place: Place | None = None) -> None:
        """Read this partition no more, or none."""
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
        """At most so many records and events; those that came within the time. ``parts``: :meth:`Fetched.records`."""
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
        """The first offset that there is, and the end, asked of the broker."""
        first, end = c_int64(), c_int64()
        code = library().rd_kafka_query_watermark_offsets(
            self._client, place[0].encode(), place[1], byref(first), byref(end), round(seconds * 1000)
        )
        self._check(code, f"look at {place}")
        return first.value, end.value

    def close(self) -> None:
        """End it, and its connections."""
        library().rd_kafka_consumer_close(self._client)
        library().rd_kafka_queue_destroy(self._queue)
        library().rd_kafka_destroy(self._client)

    def _configuration(self, settings: dict[str, Any]) -> c_void_p:
        configuration, reason = library().rd_kafka_conf_new(), create_string_buffer(_ERROR_BYTES)
        # What the library would write to standard error comes as events too.
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
    """The library's list of them, within the block."""
    found = library().rd_kafka_topic_partition_list_new(len(places))
    try:
        for (topic, partition), offset in places:
            library().rd_kafka_topic_partition_list_add(found, topic.encode(), partition)
            library().rd_kafka_topic_partition_list_set_offset(found, topic.encode(), partition, offset)
        yield found
    finally:
        library().rd_kafka_topic_partition_list_destroy(found)
