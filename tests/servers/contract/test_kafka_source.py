"""The Kafka source on a real broker: exact slices, new partitions, every format; lost records are an error."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import PySparkException

from epochal.connectors import kafka
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.engine.failures import failure_of
from epochal.errors import EpochalError, SourceChanged, SourceError, SourceUnavailable
from epochal.testing.servers.kafka import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]

ALL = SliceLimits(None)
DDL = "id bigint, name string"
METADATA = ("key", "topic", "partition", "offset", "timestamp", "headers")


def send(server: KafkaServer, topic: str, values: Sequence[bytes | None], partition: int = 0, **record: Any) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=partition, **record)
    assert producer.flush(30) == 0


def send_in_transaction(server: KafkaServer, topic: str, values: Sequence[bytes], commit: bool) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": f"writer-of-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def numbers(*ids: int) -> list[bytes]:
    return [json.dumps({"id": id, "name": f"row {id}"}).encode() for id in ids]


def take(source: Source, limits: SliceLimits = ALL) -> Slice:
    """Plan and accept the next slice, encoded as in a manifest. Waits for the end of transactions to become visible."""
    deadline = time.monotonic() + 30
    while (slice := source.plan(limits)) is None:
        assert time.monotonic() < deadline, "no slice is available"
        time.sleep(0.05)
    source.accept(slice)
    return Slice.model_validate_json(slice.model_dump_json())


def ids(source: Source, spark: SparkSession, slice: Slice) -> list[int]:
    return sorted(row["id"] for row in source.read(spark, slice).collect())


@pytest.fixture
def make(kafka_server: KafkaServer) -> Callable[..., Source]:
    def make(topics: Any = None, *arguments: Any, **options: Any) -> Source:
        source = kafka.source(kafka_server.bootstrap, topics, *arguments, **options).make()
        source.restore(None, [])
        return source

    return make


Make = Callable[..., Source]


def test_slices_of_several_partitions_are_consecutive(
    kafka_server: KafkaServer, spark: SparkSession, make: Make
) -> None:
    topic = kafka_server.create_topic(partitions=3)
    source = make(topic, schema=DDL)
    assert source.plan(ALL) is None
    for partition in range(3):
        send(kafka_server, topic, numbers(*range(partition * 100, partition * 100 + 50)), partition)
    first = take(source)
    send(kafka_server, topic, numbers(7777), partition=1)
    second = take(source)
    assert source.plan(ALL) is None
    assert ids(source, spark, first) == [*range(50), *range(100, 150), *range(200, 250)]
    assert ids(source, spark, second) == [7777]
    assert second.start == first.end
    assert ids(source, spark, first) == [*range(50), *range(100, 150), *range(200, 250)]


def test_slices_end_at_the_punctuation_of_every_partition(
    kafka_server: KafkaServer, spark: SparkSession, make: Make
) -> None:
    topic = kafka_server.create_topic(partitions=2)
    source, limit = make(topic, schema=DDL, punctuation="end"), SliceLimits(1)
    send(kafka_server, topic, numbers(1, 2), partition=0)
    send(kafka_server, topic, numbers(3), partition=0, key=b"end")
    send(kafka_server, topic, numbers(4), partition=0)
    send(kafka_server, topic, numbers(101), partition=1)
    for _ in range(20):
        assert source.plan(limit) is None
    send(kafka_server, topic, numbers(102), partition=1, key=b"end")
    assert ids(source, spark, take(source, limit)) == [1, 2, 3, 101, 102]
    assert source.plan(limit) is None
    for partition in range(2):
        send(kafka_server, topic, numbers(50 + partition), partition, key=b"end")
    send(kafka_server, topic, numbers(99))
    assert ids(source, spark, take(source, limit)) == [4, 50, 51]

    from_the_start = make(topic, schema=DDL, punctuation="end", bounded=True)
    from_the_start.limit_to_bounds()
    assert [len(ids(from_the_start, spark, take(from_the_start, limit))) for _ in range(3)] == [5, 3, 1]
    assert from_the_start.ended
    available = make(topic, schema=DDL, punctuation="end")
    available.limit_to_available()
    assert [len(ids(available, spark, take(available, limit))) for _ in range(2)] == [5, 3]
    assert available.plan(limit) is None
    assert available.ended


def test_available_records_are_those_present_at_the_start(kafka_server: KafkaServer, make: Make) -> None:
    topic = kafka_server.create_topic(partitions=2)
    send(kafka_server, topic, numbers(*range(30)), partition=0)
    source = make(topic, schema=DDL)
    while (found := source.plan(ALL)) is None or found.end["offsets"][topic]["0"] < 30:
        time.sleep(0.05)  # sent records become visible with a delay
    source.limit_to_available()
    send(kafka_server, topic, numbers(*range(10)), partition=0)
    send(kafka_server, topic, numbers(*range(10)), partition=1)
    assert not source.ended
    first, second = take(source, SliceLimits(20)), take(source, SliceLimits(20))
    assert source.ended
    assert source.plan(ALL) is None
    assert second.start == first.end
    assert second.end["offsets"][topic] == {"0": 30, "1": 0}
    later = make(topic, schema=DDL)
    later.restore(None, [first, second])
    later.limit_to_available()
    assert take(later).end["offsets"][topic] == {"0": 40, "1": 10}
    assert later.ended


def test_bounded_source_ends_with_the_records_present_at_its_start(kafka_server: KafkaServer, make: Make) -> None:
    topic = kafka_server.create_topic(partitions=2)
    send(kafka_server, topic, numbers(*range(30)), partition=0)
    source = make(topic, schema=DDL, bounded=True)
    while source.plan(ALL) is None:
        time.sleep(0.05)  # sent records become visible with a delay
    source.limit_to_bounds()
    send(kafka_server, topic, numbers(*range(10)), partition=0)
    send(kafka_server, topic, numbers(*range(10)), partition=1)
    first, second = take(source, SliceLimits(20)), take(source, SliceLimits(20))
    assert (first.end, source.bounded, source.ended, source.plan(ALL)) == (second.start, True, True, None)
    assert second.end["offsets"][topic] == {"0": 30, "1": 0}
    endless = make(topic, schema=DDL)
    endless.restore(source.checkpoint(), [])
    endless.limit_to_bounds()
    assert take(endless).end["offsets"][topic] == {"0": 40, "1": 10}
    assert (endless.bounded, endless.ended) == (False, False)


def test_bounded_source_of_an_empty_topic_ends_immediately(kafka_server: KafkaServer, make: Make) -> None:
    topic = kafka_server.create_topic(partitions=2)
    source = make(topic, schema=DDL, bounded=True)
    assert not source.ended
    source.limit_to_bounds()
    send(kafka_server, topic, numbers(1))
    assert (source.ended, source.plan(ALL)) == (True, None)


def test_new_attempt_continues_at_the_last_offsets(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    topic = kafka_server.create_topic()
    send(kafka_server, topic, numbers(1, 2, 3))
    source = make(topic, schema=DDL)
    slice = take(source, SliceLimits(2))
    checkpoint = json.loads(json.dumps(source.checkpoint()))
    for restored in (make(topic, schema=DDL), make(topic, schema=DDL)):
        restored.restore(checkpoint, [])
        assert ids(restored, spark, take(restored)) == [3]
    by_slices = make(topic, schema=DDL)
    by_slices.restore(None, [slice])
    assert ids(by_slices, spark, take(by_slices)) == [3]


def test_limit_is_shared_by_all_partitions(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    topic = kafka_server.create_topic(partitions=2)
    send(kafka_server, topic, numbers(*range(90)), partition=0)
    send(kafka_server, topic, numbers(*range(1000, 1010)), partition=1)
    source = make(topic, schema=DDL)
    first = take(source, SliceLimits(20))
    assert first.end == {"offsets": {topic: {"0": 18, "1": 2}}}
    found = ids(source, spark, first)
    while (slice := source.plan(SliceLimits(20))) is not None:
        source.accept(slice)
        found += ids(source, spark, slice)
    assert found == sorted(found, key=found.index) and sorted(found) == [*range(90), *range(1000, 1010)]


def test_aborted_records_and_transaction_markers_are_skipped(
    kafka_server: KafkaServer, spark: SparkSession, make: Make
) -> None:
    topic = kafka_server.create_topic()
    source = make(topic, schema=DDL)
    send_in_transaction(kafka_server, topic, numbers(1, 2), commit=True)
    send_in_transaction(kafka_server, topic, numbers(66, 67), commit=False)
    assert ids(source, spark, take(source)) == [1, 2]
    send_in_transaction(kafka_server, topic, numbers(68), commit=False)
    assert ids(source, spark, take(source)) == []
    send_in_transaction(kafka_server, topic, numbers(3), commit=True)
    send(kafka_server, topic, numbers(4))
    whole, part = take(source), None
    assert ids(source, spark, whole) == [3, 4]
    open_producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": f"open-{topic}"})
    open_producer.init_transactions(30)
    open_producer.begin_transaction()
    open_producer.produce(topic, numbers(5)[0], partition=0)
    open_producer.flush(30)
    send(kafka_server, topic, numbers(6))
    part = source.plan(ALL)
    assert part is None
    open_producer.commit_transaction(30)
    assert ids(source, spark, take(source)) == [5, 6]


def test_new_partitions_and_topics_are_discovered(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    one = kafka_server.create_topic(prefix="found")
    family = one.split("-")[1]
    source = make(pattern=f".*-{family}(-more)?", schema=DDL, start="latest")
    assert source.plan(ALL) is None
    admin = kafka_server.admin()
    admin.create_partitions([NewPartitions(one, 2)])[one].result(30)
    more = kafka_server.create_topic(name=f"{one}-more")
    wait_until(lambda: len(admin.list_topics(one, 10).topics[one].partitions) == 2)
    send(kafka_server, one, numbers(1), partition=1)
    send(kafka_server, more, numbers(2))
    slice = take(source)
    assert ids(source, spark, slice) == [1, 2]
    assert slice.end == {"offsets": {one: {"0": 0, "1": 1}, more: {"0": 1}}}


def test_start_positions(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    topic = kafka_server.create_topic(partitions=2, retention_ms="-1")
    for second in range(5):
        send(kafka_server, topic, numbers(second), timestamp=1_700_000_000_000 + second * 1000)
    moment = datetime.fromtimestamp(1_700_000_003, UTC)
    starts: dict[str, tuple[Any, list[int]]] = {
        "earliest": ("earliest", [0, 1, 2, 3, 4]),
        "moment": (moment, [3, 4]),
        "offsets": ({topic: {0: 2}}, [2, 3, 4]),
    }
    for start, expected in starts.values():
        source = make(topic, schema=DDL, start=start)
        assert ids(source, spark, take(source)) == expected
    latest = make(topic, schema=DDL, start="latest")
    assert latest.plan(ALL) is None
    send(kafka_server, topic, numbers(9))
    assert ids(latest, spark, take(latest)) == [9]


AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def avro(row: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(AVRO), row)
    return buffer.getvalue()


def test_every_format_and_all_metadata_are_read(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    at = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    values: dict[str, bytes] = {
        "json": numbers(1)[0],
        "string": "é漢".encode(),
        "raw": b"\xff\x00",
        "avro": avro({"id": 1, "name": None, "at": at, "tags": ["a", "b"]}),
    }
    schemas = {"json": DDL, "avro": json.dumps(AVRO)}
    for format, value in values.items():
        topic = kafka_server.create_topic(retention_ms="-1")
        send(kafka_server, topic, [value], key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_123)
        send(kafka_server, topic, [None])
        source = make(topic, format, schemas.get(format), metadata=METADATA)
        slice = take(source)
        frame = source.read(spark, slice)
        assert frame.schema == source.schema(spark)
        some = source.read_some(spark, slice, frozenset(frame.columns) - {"offset"})
        assert some.schema == frame.schema
        assert sorted(row.offset for row in some.select("offset").collect()) == [0, 1]
        with pytest.raises(PySparkException, match="not foreseen"):
            some.select("offset", "key").collect()
        first, tombstone = frame.selectExpr("*", "CAST(timestamp AS DOUBLE) AS seconds").orderBy("offset").collect()
        assert (first["key"], first["topic"], first["partition"], first["offset"]) == ("k", topic, 0, 0)
        assert first["seconds"] == 1_700_000_000.123
        assert [tuple(header) for header in first["headers"]] == [("h", b"1")]
        assert (tombstone["key"], tombstone["headers"], tombstone[0]) == (None, None, None)
        dropping = make(topic, format, schemas.get(format), metadata=METADATA, tombstones="drop")
        dropped = take(dropping)
        assert [row.offset for row in dropping.read(spark, dropped).collect()] == [0]
        unread = frozenset(frame.columns) - {"offset"}
        assert dropping.read_some(spark, dropped, unread).select("offset").count() == 1
        failing = make(topic, format, schemas.get(format), metadata=METADATA, tombstones="fail", malformed="drop")
        with pytest.raises(PySparkException) as caught:
            failing.read_some(spark, take(failing), unread).select("offset").collect()
        failure = failure_of(caught.value)
        assert failure.type == "malformed-record"
        assert f"offset 1 of topic {topic}, partition 0 has no value" in failure.message
        if format == "avro":
            row = frame.selectExpr("id", "name", "CAST(at AS LONG) AS at", "tags").first()
            assert row is not None and tuple(row) == (1, None, int(at.timestamp()), ["a", "b"])
        else:
            assert first[0] == {"json": 1, "string": "é漢", "raw": bytearray(b"\xff\x00")}[format]


def test_malformed_record_is_reported_or_dropped(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    for format, schema, bad in (
        ("json", DDL, b'{"id": "many"}'),
        ("json", DDL, b"\xff"),
        ("avro", json.dumps(AVRO), b"\xff\xff"),
        ("string", None, b"\xff"),
    ):
        good = {"json": numbers(1)[0], "string": b"1"}.get(format) or avro({"id": 1, "at": 0, "tags": []})
        topic = kafka_server.create_topic()
        send(kafka_server, topic, [good, bad, good])
        strict = make(topic, format, schema, metadata=["offset"])
        slice = take(strict)
        unread = frozenset(strict.schema(spark).names) - {"offset"}
        for frame in (strict.read(spark, slice), strict.read_some(spark, slice, unread).select("offset")):
            with pytest.raises(PySparkException) as caught:
                frame.collect()
            failure = failure_of(caught.value)
            assert failure.type == "malformed-record"
            assert f"offset 1 of topic {topic}, partition 0" in failure.message
        tolerant = make(topic, format, schema, malformed="drop")
        assert len(tolerant.read(spark, take(tolerant)).collect()) == 2


def test_records_expired_before_they_were_read_are_an_error(
    kafka_server: KafkaServer, spark: SparkSession, make: Make
) -> None:
    topic = kafka_server.create_topic()
    source = make(topic, schema=DDL)
    send(kafka_server, topic, numbers(*range(10)))
    slice = take(source, SliceLimits(4))
    expire(kafka_server, topic, before=7)
    with pytest.raises(SourceChanged, match=f"Topic {topic}, partition 0, .* up to offset 4, but offsets 4 to 7 are"):
        restored(make, topic, [slice]).plan(ALL)
    with pytest.raises(Exception, match="has lost a part") as caught:
        source.read(spark, slice).collect()
    failure = failure_of(caught.value)
    assert failure.type == "source-changed"
    assert f"{topic}, partition 0, offsets 0 to 4" in failure.message
    assert "offsets 7 to 10 now" in failure.message


def test_recreated_topic_is_an_error(kafka_server: KafkaServer, spark: SparkSession, make: Make) -> None:
    topic = kafka_server.create_topic()
    source = make(topic, schema=DDL)
    send(kafka_server, topic, numbers(1, 2))
    slice = take(source)
    admin = kafka_server.admin()
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics)
    with pytest.raises(SourceChanged, match=f"Topic {topic} .* no longer exists.*0: 2"):
        source.plan(ALL)
    kafka_server.create_topic(name=topic)
    send(kafka_server, topic, numbers(*range(100, 110)))
    for broken in (lambda: source.plan(ALL), lambda: restored(make, topic, [slice]).read(spark, slice)):
        with pytest.raises(SourceChanged, match="was deleted and created again"):
            broken()


def test_missing_topic_is_reported_immediately(kafka_server: KafkaServer, make: Make) -> None:
    with pytest.raises(SourceError, match="has no topic 'absent'"):
        make("absent", schema=DDL).plan(ALL)
    assert make(pattern="absent-.*", schema=DDL).plan(ALL) is None


@pytest.mark.alternating(3)
def test_no_slice_is_planned_while_the_broker_is_down(
    kafka_server: KafkaServer, spark: SparkSession, make: Make
) -> None:
    topic = kafka_server.create_topic()
    source = make(topic, schema=DDL)
    assert source.plan(ALL) is None
    send(kafka_server, topic, numbers(1))
    kafka_server.stop()
    try:
        for each in (source, make(topic, schema=DDL)):
            with pytest.raises(SourceUnavailable, match="No broker there answers"):
                each.plan(ALL)
    finally:
        kafka_server.start()
    assert ids(source, spark, take(source)) == [1]


def restored(make: Make, topic: str, slices: Sequence[Slice]) -> Source:
    source = make(topic, schema=DDL)
    source.restore(None, slices)
    return source


def expire(server: KafkaServer, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition

    partition = TopicPartition(topic, 0, before)
    admin = server.admin()
    admin.delete_records([partition])[partition].result(30)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise EpochalError("timed out waiting for a condition")
        time.sleep(0.05)
