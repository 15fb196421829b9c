"""Sink backend of ``kafka.sink``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from epochal.backends.kafka.committer import ShardCommitter, ShardPlace, ShardWork
from epochal.backends.kafka.connection import Connection
from epochal.backends.kafka.marker import ensure_topic, read_marker
from epochal.backends.kafka.records import RecordShape
from epochal.backends.kafka.topics import Topics
from epochal.backends.kafka.transactions import DirectTransaction, LoggedTransaction, RecordCheck, may_begin
from epochal.backends.write_ahead_log import WriteAheadLog, has_log, rows_of
from epochal.contracts.backend import SinkBackend, SinkPlace, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import Fenced, SinkError
from epochal.faults import declare

TAKEN_OVER = declare("R1.kafka.taken-over", "the sink's earlier producers are fenced, and its markers are not ahead")


@dataclass(frozen=True)
class KafkaSinkSettings:
    """Settings. ``create``: number of partitions of a topic to be created. ``transaction_records``: maximum per
    transaction."""

    connection: Connection
    shape: RecordShape
    shards: int = 1
    create: int | None = None
    marker_topic: str | None = None
    transaction_timeout_seconds: float = 60.0
    transaction_records: int = 10_000_000


class KafkaBackend(SinkBackend):
    """Sink backend that ``kafka.sink`` creates. Serialisable: producers belong to the process that commits."""

    def __init__(self, place: SinkPlace, settings: KafkaSinkSettings) -> None:
        self._place = place
        named = replace(settings.connection, subject=f"Kafka sink {place.sink!r}")
        self._settings = replace(settings, connection=named)
        self._log = WriteAheadLog(place)
        self._largest: dict[str, int] = {}
        self._shards: _Shards | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": None}

    @property
    def kind(self) -> str:
        return "kafka"

    @property
    def target(self) -> str:
        shape = self._settings.shape
        topics = "".join([shape.topic or "", f"[{shape.topic_column}]" if shape.topic_column else ""])
        return f"kafka:{self._settings.connection.servers}/{topics}"

    def check(self, schema: pa.Schema) -> None:
        self._settings.shape.check(self._name, schema)

    def recover(self, epoch: EpochScope) -> None:
        topics = Topics(self._settings.connection)
        self._find_topic(topics)
        if not self._is_direct:
            ensure_topic(topics, self._marker_topic(epoch))
            self._close()
            for committer in self._committers(epoch):
                committer.take_over(epoch.epoch)
            TAKEN_OVER.hit()

    def shown(self, epoch: EpochScope) -> int | None:
        if self._is_direct:
            return None
        topic, connection = self._marker_topic(epoch), self._settings.connection
        if topic not in Topics(connection).find([topic]):
            return 0
        markers = [
            read_marker(connection, topic, f"{epoch.branch}.{self._place.sink}.{shard}", wait=False)
            for shard in range(self._settings.shards)
        ]
        return max((marker.epoch for marker in markers if marker is not None), default=0)

    def start(self, task: TaskScope) -> SinkTransaction:
        settings = self._settings
        check = RecordCheck(self._name, settings.connection, settings.shape.topic, self._largest)
        if self._is_direct:
            return DirectTransaction(settings.shape, check, settings.transaction_timeout_seconds, task)
        return LoggedTransaction(settings.shape, check, self._log, task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        if self._is_direct and not any(has_log(handle) for handle in handles):
            return  # epochs prepared before a change of the delivery have a log
        shards = self._committers(epoch)
        works = [self._work(epoch, handles, shard) for shard in range(len(shards))]
        if len(shards) == 1:
            shards[0].commit(works[0])
        else:
            _all_of(shards, works)
        self._log.remove(epoch, handles)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._log.remove(epoch, handles)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return self._log.sweep(epoch, keep)

    @property
    def _is_direct(self) -> bool:
        """Return whether tasks write directly to the topic."""
        return self._place.delivery != "exactly_once"

    @property
    def _name(self) -> str:
        return f"Kafka sink {self._place.sink!r}"

    def _work(self, epoch: EpochScope, handles: Sequence[Handle], shard: int) -> ShardWork:
        mine = sorted(
            (handle for handle in handles if handle.subtask % self._settings.shards == shard),
            key=lambda handle: handle.subtask,
        )
        return ShardWork(
            epoch=epoch.epoch,
            parent=epoch.parent_in_branch,
            rows=rows_of(mine),
            sha256=hashlib.sha256(b"".join(handle.encode() for handle in mine)).hexdigest(),
            topic=self._settings.shape.topic,
            batches=partial(self._log.read, epoch, mine),
            may_begin=lambda: may_begin(self._log.store, epoch, self._place.sink),
        )

    def _find_topic(self, topics: Topics) -> None:
        """Check that the sink's own topic exists, or create it, and read its maximum record size."""
        name = self._settings.shape.topic
        if name is None:
            return
        if name not in topics.find([name]):
            if self._settings.create is None:
                raise SinkError(
                    f"{self._name}: Kafka at {self._settings.connection.servers} has no topic {name!r}. Create it, "
                    "correct the name, or let the sink create it: create=<number of partitions>."
                )
            topics.create(name, self._settings.create)
        self._largest = {name: topics.largest_record(name)}

    def _committers(self, epoch: EpochScope) -> Sequence[ShardCommitter]:
        """Return the committers of this attempt, one per shard; they are reused while branch and attempt stay the
        same."""
        owner = (epoch.branch, epoch.attempt)
        if self._shards is None or self._shards.owner != owner:
            self._close()
            ids = [f"{epoch.branch}.{self._place.sink}.{shard}" for shard in range(self._settings.shards)]
            places = [self._shard_place(id, epoch) for id in ids]
            self._shards = _Shards(owner, tuple(ShardCommitter(place, epoch.attempt) for place in places))
        return self._shards.committers

    def _shard_place(self, transactional_id: str, epoch: EpochScope) -> ShardPlace:
        settings = self._settings
        return ShardPlace(
            connection=replace(settings.connection, subject=f"Kafka sink {transactional_id}"),
            transactional_id=transactional_id,
            marker_topic=self._marker_topic(epoch),
            application=epoch.application,
            shards=settings.shards,
            largest_record=self._largest.get(settings.shape.topic or ""),
            timeout_seconds=settings.transaction_timeout_seconds,
            limit=settings.transaction_records,
        )

    def _marker_topic(self, epoch: EpochScope) -> str:
        return self._settings.marker_topic or f"epochal.{epoch.application}.markers"

    def _close(self) -> None:
        if self._shards is not None:
            for committer in self._shards.committers:
                committer.close()
        self._shards = None


@dataclass(frozen=True)
class _Shards:
    owner: tuple[str, int]
    committers: tuple[ShardCommitter, ...]


def _all_of(committers: Sequence[ShardCommitter], works: Sequence[ShardWork]) -> None:
    """Commit all shards concurrently; when all have ended, raise the first error. ``Fenced`` takes precedence."""
    with ThreadPoolExecutor(len(committers), thread_name_prefix="epochal-kafka-shard") as pool:
        futures = [pool.submit(committer.commit, work) for committer, work in zip(committers, works, strict=True)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: not isinstance(error, Fenced)):
        raise error
