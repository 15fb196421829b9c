"""Queries about topics: existence, identity, and maximum record size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from epochal.backends.kafka.connection import ANSWER_SECONDS, Complaints, Connection, kafka_error
from epochal.background.retries import attempts

PATIENCE_SECONDS = 0.5
LARGEST_BY_DEFAULT = 1_048_588
"""Kafka's default of ``max.message.bytes``: used if the user may not read a topic's settings."""


@dataclass(frozen=True)
class Topic:
    """Current description of a topic. ``identity`` changes when a topic of the same name is created again."""

    name: str
    identity: str
    partitions: int


class Topics:
    """Queries about topics over one connection, which is closed with the object."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        settings, self._complaints = connection.watched(socket_connection_setup_timeout_ms=5000)
        with connection.translated("connect", self._complaints):
            self._admin = AdminClient(settings)

    @property
    def admin(self) -> AdminClient:
        return self._admin

    @property
    def complaints(self) -> Complaints:
        return self._complaints

    def names(self) -> list[str]:
        """Return all topics that the user may see, without Kafka's internal ones."""
        with self._connection.translated("list topics", self._complaints):
            return sorted(name for name in self._admin.list_topics(timeout=ANSWER_SECONDS).topics if name[:2] != "__")

    def find(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the existing topics among ``names``."""
        if not names:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER_SECONDS)
        found = {}
        for name, future in futures.items():
            with self._connection.translated(f"describe topic {name}", self._complaints):
                try:
                    description = self._answer(future)
                except KafkaException as error:
                    if kafka_error(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise
            found[name] = Topic(name, str(description.topic_id), len(description.partitions))
        return found

    def create(self, name: str, partitions: int, settings: Mapping[str, str] | None = None) -> Topic:
        """Create the topic, or accept one that was created concurrently. Replication factor: the broker's default."""
        with self._connection.translated(f"create topic {name}", self._complaints):
            new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(settings or {}))
            try:
                self._answer(self._admin.create_topics([new], request_timeout=ANSWER_SECONDS)[name])
            except KafkaException as error:
                if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return self._appeared(name)

    def settings(self, name: str) -> dict[str, str] | None:
        """Return a topic's settings; ``None`` if the user may not read them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        with self._connection.translated(f"read the settings of topic {name}", self._complaints):
            try:
                futures = self._admin.describe_configs([resource], request_timeout=ANSWER_SECONDS)
                entries: dict[str, Any] = self._answer(futures[resource])
            except KafkaException as error:
                if kafka_error(error).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                raise
        return {key: str(entry.value) for key, entry in entries.items()}

    def largest_record(self, name: str) -> int:
        """Return the maximum size in bytes of a record of the topic, including Kafka's overhead."""
        settings = self.settings(name) or {}
        with suppress(KeyError, ValueError):
            return int(settings["max.message.bytes"])
        return LARGEST_BY_DEFAULT

    def _answer(self, future: Future[Any]) -> Any:
        """Wait for an answer, until the client reports that none can come."""
        while True:
            self._admin.poll(0)
            try:
                return future.result(PATIENCE_SECONDS)
            except TimeoutError:
                if self._complaints.hopeless:
                    raise KafkaException(self._complaints.last) from None

    def _appeared(self, name: str) -> Topic:
        """Wait until the brokers show a topic that was just created."""
        for _ in attempts(0.1, timeout=ANSWER_SECONDS):
            found = self.find([name])
            if name in found:
                return found[name]
        raise self._connection.error(
            f"Kafka at {self._connection.servers} made topic {name}, but does not show it. Try again."
        )
