"""The driver's requests to Kafka: existing topics and partitions, and their first and last offsets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from epochal.backends.kafka.connection import ANSWER_SECONDS, PASSING, Connection, kafka_error
from epochal.backends.kafka.topics import Topic, Topics
from epochal.background.retries import attempts
from epochal.connectors.kafka.offsets import Offsets
from epochal.errors import SourceError, SourceUnavailable


@dataclass(frozen=True)
class Selection:
    """Topics by name, or by a pattern that must match the whole name."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def includes(self, name: str) -> bool:
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None

    def __str__(self) -> str:
        return f"pattern {self.pattern!r}" if self.pattern is not None else ", ".join(self.names)


class Cluster:
    """The driver's connection, opened on first use. A request covers all partitions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics: Topics | None = None

    def find(self, selection: Selection) -> dict[str, Topic]:
        """Find the existing topics of the selection. Raises ``SourceError`` if Kafka does not respond."""
        try:
            names: Sequence[str] = selection.names
            if selection.pattern is not None:
                names = [name for name in self._asked.names() if selection.includes(name)]
            return self._asked.find(names)
        except SourceUnavailable:
            self._topics = None  # a new connection has no memory of the outage
            raise

    def earliest(self, partitions: Sequence[tuple[str, int]]) -> Offsets:
        """The first existing offset of each partition."""
        return self._list(
            partitions,
            OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
            "find the beginning of",
        )

    def latest(self, partitions: Sequence[tuple[str, int]]) -> Offsets:
        """The end of the committed records: the start of the first open transaction, or the next offset."""
        return self._list(
            partitions,
            OffsetSpec.latest(),  # type: ignore[no-untyped-call]
            "find the end of",
        )

    def at(self, partitions: Sequence[tuple[str, int]], moment: datetime) -> Offsets:
        """The offset of the first record at or after ``moment``; the end of the partition if there is none."""
        milliseconds = int(moment.timestamp() * 1000)
        found = self._list(partitions, OffsetSpec.for_timestamp(milliseconds), f"find {moment} in")
        ends = self.latest(partitions)
        return {
            topic: {
                partition: offset if offset >= 0 else ends[topic][partition] for partition, offset in of_topic.items()
            }
            for topic, of_topic in found.items()
        }

    @property
    def _asked(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._connection)
        return self._topics

    def _list(self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec, what: str) -> Offsets:
        if not partitions:
            return {}
        for attempt in attempts(0.1, timeout=ANSWER_SECONDS):
            try:
                return self._list_once({TopicPartition(*place): spec for place in partitions})
            except _Failed as failed:
                if failed.error.code() not in PASSING or attempt.is_last:
                    doing = f"{what} topic {failed.place.topic}, partition {failed.place.partition}"
                    complaint = self._asked.complaints.last
                    raise self._connection.translate(failed.error, doing, complaint) from failed.__cause__
        raise AssertionError("The last attempt returns or raises.")

    def _list_once(self, requests: dict[TopicPartition, OffsetSpec]) -> Offsets:
        futures = self._asked.admin.list_offsets(
            requests, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_SECONDS
        )
        found: Offsets = {}
        for place, future in futures.items():
            try:
                found.setdefault(place.topic, {})[place.partition] = int(future.result().offset)
            except KafkaException as error:
                raise _Failed(place, kafka_error(error)) from error
        return found


class _Failed(Exception):
    """An error response for one partition."""

    def __init__(self, place: TopicPartition, error: KafkaError) -> None:
        super().__init__(place, error)
        self.place = place
        self.error = error


def missing(connection: Connection, names: Sequence[str]) -> SourceError:
    """The error for missing topics."""
    return SourceError(
        f"Kafka at {connection.servers} has no topic {', '.join(map(repr, names))}. Create it, or correct the name."
    )
