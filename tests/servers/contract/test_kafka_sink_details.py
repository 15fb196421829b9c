"""The Kafka sink on a real broker: the parts of its records, and the errors that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from epochal.backends.kafka.marker import Marker
from epochal.connectors import kafka
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import EpochalError, SinkError, SinkUnavailable
from epochal.snapshots.manifest import Manifest, SinkHandles
from epochal.snapshots.store import SnapshotStore
from epochal.testing.kafka_reading import read_topic
from epochal.testing.servers.kafka import KafkaServer
from epochal.testing.servers.process import free_port
from tests.kit.manifests import plain_manifest

pytestmark = pytest.mark.server

Make = Callable[..., SinkBackend]


@pytest.fixture
def branch(tmp_path: Path) -> str:
    return f"b-{abs(hash(tmp_path)):x}"


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(str(tmp_path / "store"))


@pytest.fixture
def make(kafka_server: KafkaServer, store: SnapshotStore) -> Make:
    def make(topic: str | None = None, *, name: str = "out", servers: str | None = None, **options: Any) -> SinkBackend:
        definition = kafka.sink(servers or kafka_server.bootstrap, topic, **options)
        return definition.make(SinkPlace(name, store, definition.delivery or "exactly_once"))

    return make


def scope(branch: str, number: int, attempt: int = 1, parent: int | None = None) -> EpochScope:
    return EpochScope("app", EpochKey(branch, number), attempt, EpochKey(branch, parent) if parent else None)


def prepare(backend: SinkBackend, epoch: EpochScope, rows: pa.Table | Sequence[Mapping[str, Any]]) -> Handle:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
    backend.check(table.schema)
    transaction = backend.start(TaskScope(epoch, "out", 0))
    for batch in table.to_batches():
        transaction.write(batch)
    return transaction.pre_commit()


def write(backend: SinkBackend, branch: str, rows: pa.Table | Sequence[Mapping[str, Any]]) -> None:
    """Write the first epoch of a branch."""
    backend.recover(scope(branch, 0))
    backend.commit(scope(branch, 1), [prepare(backend, scope(branch, 1), rows)])


def test_keys_map_to_the_same_partitions_as_in_kafkas_java_producer(
    kafka_server: KafkaServer, make: Make, branch: str
) -> None:
    """Kafka's tools compute the partition as murmur2 of the key, made positive, modulo the number of partitions."""
    topic = kafka_server.create_topic(partitions=7)
    keys = [f"key-{number}" for number in range(60)] + ["é漢", ""]
    write(make(topic, key="k"), branch, [{"k": key} for key in keys])
    found = {
        (message.key() or b"").decode(): message.partition() for message in read_topic(kafka_server.bootstrap, topic)
    }
    assert found == {key: (murmur2(key.encode()) & 0x7FFFFFFF) % 7 for key in keys}


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed of Kafka's Java client. Published test vectors are below."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


def test_murmur2_equals_that_of_kafkas_java_client() -> None:
    vectors = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {data: murmur2(data) - (1 << 32) for data in vectors} == vectors


def test_records_have_topic_partition_timestamp_headers_and_key(
    kafka_server: KafkaServer, make: Make, branch: str
) -> None:
    topic = kafka_server.create_topic(partitions=3, retention_ms="-1")
    other = kafka_server.create_topic(retention_ms="-1")
    at = datetime(2020, 2, 2, 2, 2, 2, 222000, tzinfo=UTC)
    rows = pa.table(
        {
            "to": pa.array([None, other], pa.string()),
            "place": pa.array([2, None], pa.int32()),
            "time": pa.array([at, None], pa.timestamp("us", "UTC")),
            "extra": pa.array([[("trace", "1"), ("empty", None)], None], pa.map_(pa.string(), pa.string())),
            "k": pa.array([b"\x00\x01", None], pa.binary()),
            "text": pa.array(["one", None]),
        }
    )
    options = {"topic_column": "to", "partition": "place", "timestamp": "time", "headers": "extra", "key": "k"}
    write(make(topic, format="string", value="text", **options), branch, rows)
    (first,), (second,) = read_topic(kafka_server.bootstrap, topic), read_topic(kafka_server.bootstrap, other)
    assert (first.partition(), first.key(), first.value()) == (2, b"\x00\x01", b"one")
    assert first.headers() == [("trace", b"1"), ("empty", None)]
    assert first.timestamp()[1] == int(at.timestamp() * 1000)
    assert (second.key(), second.value(), second.headers()) == (None, None, None)


def test_at_least_once_delivery_writes_from_the_task(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic = kafka_server.create_topic()
    backend = make(topic, delivery="at_least_once", value="v", format="raw")
    backend.recover(scope(branch, 0))
    handle = prepare(backend, scope(branch, 1), [{"v": b"1"}, {"v": b"2"}])
    assert [message.value() for message in read_topic(kafka_server.bootstrap, topic)] == [b"1", b"2"]
    backend.commit(scope(branch, 1), [handle])
    backend.sweep(scope(branch, 1), [handle])
    assert handle.rows == 2
    assert len(read_topic(kafka_server.bootstrap, topic)) == 2


@pytest.mark.claim(
    "docs/concepts/guarantees.md: what column types, lengths and a topic's limit determine is found before the decision"
)
def test_records_larger_than_the_topic_allows_are_refused(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic = kafka_server.create_topic(max_message_bytes="20000")
    backend = make(topic, key="k", value="v", format="raw")
    write(backend, branch, [{"k": f"fits-{number}", "v": b"x" * 19_800} for number in range(20)])
    assert len(read_topic(kafka_server.bootstrap, topic)) == 20
    with pytest.raises(SinkError, match=r"the record with key 'large' has .* bytes; the maximum of topic .* is 20000"):
        prepare(backend, scope(branch, 2, parent=1), [{"k": "ok", "v": b""}, {"k": "large", "v": b"x" * 20_000}])
    by_column = make(topic_column="to", key="k", value="v", format="raw", name="columns")
    by_column.recover(scope(branch, 0))
    with pytest.raises(SinkError, match="the record with key 'large'"):
        prepare(by_column, scope(branch, 1), [{"k": "large", "v": b"x" * 20_000, "to": topic}])
    with pytest.raises(SinkError, match=r"a row is for topic 'absent', which Kafka at .* does not have"):
        prepare(by_column, scope(branch, 1), [{"k": "k", "v": b"", "to": "absent"}])


@pytest.mark.claim(
    "docs/concepts/guarantees.md: is found after the decision: the sink waits until it is corrected, and nothing is "
    "lost"
)
def test_lowered_record_limit_blocks_the_commit_until_it_is_raised(
    kafka_server: KafkaServer, make: Make, branch: str
) -> None:
    topic = kafka_server.create_topic()
    backend = make(topic, key="k", value="v", format="raw")
    backend.recover(scope(branch, 0))
    handle = prepare(backend, scope(branch, 1), [{"k": "a", "v": b"x" * 5000}, {"k": "b", "v": b"y"}])
    kafka_server.alter_topic(topic, max_message_bytes="1000")
    with pytest.raises(SinkError, match="Kafka refused the record with key 'a'"):
        backend.commit(scope(branch, 1), [handle])
    assert read_topic(kafka_server.bootstrap, topic) == []
    kafka_server.alter_topic(topic, max_message_bytes="100000")
    backend.commit(scope(branch, 1), [handle])
    assert [message.key() for message in read_topic(kafka_server.bootstrap, topic)] == [b"a", b"b"]


def test_missing_topic_is_created_only_with_create(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    with pytest.raises(SinkError, match=r"has no topic 'not-yet-.*'\. Create it, .*create=<number of partitions>"):
        make(f"not-yet-{branch}").recover(scope(branch, 0))
    write(make(f"made-{branch}", create=3), branch, [{"v": 1}])
    assert len(read_topic(kafka_server.bootstrap, f"made-{branch}")) == 1
    assert len(kafka_server.admin().list_topics(f"made-{branch}", 10).topics[f"made-{branch}"].partitions) == 3


def test_unreachable_broker_is_reported_as_unavailable(make: Make, branch: str) -> None:
    backend = make("any", servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(SinkUnavailable, match="No broker there answers"):
        backend.recover(scope(branch, 0))


def test_lost_marker_is_an_error_but_a_new_sink_needs_none(
    kafka_server: KafkaServer, make: Make, store: SnapshotStore, branch: str
) -> None:
    topic = kafka_server.create_topic()
    backend = make(topic)
    backend.recover(scope(branch, 3))
    handle = prepare(backend, scope(branch, 4, parent=3), [{"v": 1}])
    with pytest.raises(SinkError, match=r"its marker in topic epochal.app.markers is missing, but epoch 3 is required"):
        backend.commit(scope(branch, 4, parent=3), [handle])
    store.write_manifest(manifest(branch, 3, sinks=("out",)))
    with pytest.raises(SinkError, match="is missing"):
        backend.commit(scope(branch, 4, parent=3), [handle])
    assert read_topic(kafka_server.bootstrap, topic) == []

    added = f"{branch}-added"
    store.write_manifest(manifest(added, 3, sinks=("another",)))
    backend.recover(scope(added, 3))
    backend.commit(scope(added, 4, parent=3), [prepare(backend, scope(added, 4, parent=3), [{"v": 2}])])
    assert len(read_topic(kafka_server.bootstrap, topic)) == 1


def manifest(branch: str, epoch: int, sinks: Sequence[str]) -> Manifest:
    return plain_manifest(
        epoch,
        application="app",
        branch=branch,
        max_parallelism=1,
        sinks={name: SinkHandles(kind="kafka", target="kafka:", handles=()) for name in sinks},
    )


def test_marker_ahead_of_the_state_is_reported_as_lost_state(
    kafka_server: KafkaServer, make: Make, branch: str
) -> None:
    topic = kafka_server.create_topic()
    write(make(topic), branch, [{"v": 1}])
    with pytest.raises(SinkError, match="already holds epoch 1, but the application's state is at epoch 0: state was"):
        make(topic).recover(scope(branch, 0, attempt=2))


def test_changed_number_of_shards_is_refused(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic = kafka_server.create_topic()
    write(make(topic, shards=2), branch, [{"v": 1}])
    with pytest.raises(SinkError, match="was started with shards=2, and now has 3"):
        make(topic, shards=3).recover(scope(branch, 1, attempt=2))


def test_marker_topic_without_compaction_is_refused(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic, markers = kafka_server.create_topic(), kafka_server.create_topic(prefix="markers")
    with pytest.raises(SinkError, match=r"has cleanup\.policy=delete: Kafka would delete markers"):
        make(topic, marker_topic=markers).recover(scope(branch, 0))


def test_open_transaction_in_the_marker_topic_does_not_hide_a_marker(
    kafka_server: KafkaServer, make: Make, branch: str
) -> None:
    """Two sinks died together; the first to recover does not wait for the other and finds its own marker."""
    topic = kafka_server.create_topic()
    write(make(topic), branch, [{"v": 1}])
    other = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": f"{branch}.other.0"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce("epochal.app.markers", b"{}", b"other", 0)
    other.flush(30)
    second = prepare(make(topic), scope(branch, 2, 2, parent=1), [{"v": 2}])
    successor = make(topic)
    successor.recover(scope(branch, 2, attempt=2))
    other.abort_transaction(30)
    successor.commit(scope(branch, 2, 2, parent=1), [second])
    successor.commit(scope(branch, 2, 2, parent=1), [second])
    assert len(read_topic(kafka_server.bootstrap, topic)) == 2


def test_abandoned_epoch_writes_a_marker_and_no_rows(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic = kafka_server.create_topic()
    backend = make(topic)
    backend.recover(scope(branch, 0))
    handle = prepare(backend, scope(branch, 1), [{"v": 1}])
    backend.commit(scope(branch, 1), [])
    make(topic).commit(scope(branch, 1), [handle])
    backend.commit(scope(branch, 2, parent=1), [prepare(backend, scope(branch, 2, parent=1), [{"v": 2}])])
    assert [message.value() for message in read_topic(kafka_server.bootstrap, topic)] == [b'{"v":2}']


def test_invalid_marker_is_reported(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic, markers = kafka_server.create_topic(), kafka_server.create_topic(cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    producer.produce(markers, b"nonsense", f"{branch}.out.0")
    producer.flush(30)
    with pytest.raises(EpochalError, match=r"cannot be read: .*Another program writes to that topic"):
        make(topic, marker_topic=markers).recover(scope(branch, 0))


def test_marker_records_epoch_attempt_and_rows(kafka_server: KafkaServer, make: Make, branch: str) -> None:
    topic, markers = kafka_server.create_topic(), kafka_server.create_topic(cleanup_policy="compact")
    write(make(topic, marker_topic=markers), branch, [{"v": 1}, {"v": 2}])
    (message,) = read_topic(kafka_server.bootstrap, markers)
    marker = Marker.model_validate_json(message.value() or b"")
    assert message.key() == f"{branch}.out.0".encode()
    assert (marker.epoch, marker.attempt, marker.rows, marker.complete) == (1, 1, 2, True)
