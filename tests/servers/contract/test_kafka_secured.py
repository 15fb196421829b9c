"""Kafka with TLS, passwords and ACLs: secrets are references, and no error message contains one."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from epochal.backends.kafka.connection import Connection, kafka_error
from epochal.backends.kafka.producers import RecordProducer
from epochal.connectors import kafka
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import SliceLimits
from epochal.errors import EpochalError, OptionError, SinkError
from epochal.secrets import secret
from epochal.snapshots.store import SnapshotStore
from epochal.testing.kafka_reading import read_topic
from epochal.testing.servers.kafka import USER, KafkaServer
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch, pre_commit, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]

VARIABLE = "EPOCHAL_SECRET_TEST_KAFKA"
Options = Callable[..., dict[str, Any]]
AT_START = EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None)


@pytest.fixture
def server(kafka_server: KafkaServer) -> KafkaServer:
    """A broker whose user has rights on the topics of earlier tests only."""
    return kafka_server


@pytest.fixture
def options(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv(VARIABLE, server.secured.password)

    def options(mechanism: str = "SCRAM-SHA-512", **changes: Any) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_username": USER,
            "sasl_password": secret(f"env:{VARIABLE}"),
            "ssl_ca_location": str(server.secured.authority),
            **changes,
        }

    return options


def grant(server: KafkaServer, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    admin = server.admin()
    for answer in admin.create_acls(bindings).values() if bindings else ():
        answer.result(30)


def topic_with_rights(server: KafkaServer, *operations: AclOperation, markers: bool = True) -> str:
    """Create a topic and marker topic ``{topic}-markers`` with the rights that docs/reference/sinks/kafka.md lists."""
    topic = server.create_topic()
    grant(server, ResourceType.TOPIC, topic, *operations)
    if markers:
        server.create_topic(name=f"{topic}-markers", cleanup_policy="compact")
        grant(server, ResourceType.TOPIC, f"{topic}-markers", *DESCRIBING, AclOperation.READ, AclOperation.WRITE)
    grant(server, ResourceType.TRANSACTIONAL_ID, f"{BRANCH}.out.0", AclOperation.DESCRIBE, AclOperation.WRITE)
    return topic


DESCRIBING = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)


def sink(server: KafkaServer, topic: str, folder: Path, options: dict[str, Any]) -> SinkBackend:
    definition = kafka.sink(server.secured.bootstrap, topic, key="id", marker_topic=f"{topic}-markers", **options)
    assert server.secured.password not in repr(definition)
    return definition.make(SinkPlace("out", SnapshotStore(str(folder / "store"))))


def ids(server: KafkaServer, topic: str) -> list[int]:
    return [json.loads(message.value() or b"")["id"] for message in read_topic(server.bootstrap, topic)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.alternating(3)
def test_documented_rights_suffice_for_a_sink(
    server: KafkaServer, options: Options, tmp_path: Path, mechanism: str
) -> None:
    topic = topic_with_rights(server, *DESCRIBING, AclOperation.WRITE)
    backend = sink(server, topic, tmp_path, options(mechanism))
    backend.check(SCHEMA)
    backend.recover(AT_START)
    assert server.secured.password.encode() not in pickle.dumps(backend)
    handle = pre_commit(backend, epoch(1), rows(1, 2))
    assert server.secured.password.encode() not in handle.encode()
    backend.commit(epoch(1), [handle])
    assert sorted(ids(server, topic)) == [1, 2]


def test_source_reads_with_a_password_reference(
    server: KafkaServer, options: Options, spark: SparkSession, tmp_path: Path
) -> None:
    """The secret is a file, because running executors do not see new environment variables."""
    topic = topic_with_rights(server, *DESCRIBING, AclOperation.READ, markers=False)
    (tmp_path / "password").write_text(f"{server.secured.password}\n")
    by_file = options(sasl_password=secret(f"file:{tmp_path / 'password'}"))
    grant(server, ResourceType.GROUP, "epochal", AclOperation.READ)
    writer = server.producer()
    for number in range(3):
        writer.produce(topic, json.dumps({"id": number}).encode())
    assert writer.flush(30) == 0
    definition = kafka.source(server.secured.bootstrap, topic, schema="id bigint", **by_file)
    assert server.secured.password not in repr(definition)
    source = definition.make()
    source.restore(None, [])
    slice = source.plan(SliceLimits(None))
    assert slice is not None
    assert server.secured.password not in slice.model_dump_json()
    assert sorted(row["id"] for row in source.read(spark, slice).collect()) == [0, 1, 2]


def checked_message(error: EpochalError, server: KafkaServer, *secrets: str) -> str:
    """Return the message of an error, after a check that it contains no secret."""
    text = f"{error.message} {error.__cause__}"
    for hidden in (server.secured.password, *secrets):
        assert hidden not in text
    return error.message


def test_wrong_password_is_reported_without_the_password(
    server: KafkaServer, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "not-the-password")
    topic = topic_with_rights(server, *DESCRIBING, AclOperation.WRITE)
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        backend = sink(server, topic, tmp_path, options(mechanism))
        with pytest.raises(SinkError) as failed:
            backend.recover(AT_START)
        message = checked_message(failed.value, server, "not-the-password")
        assert re.search(r"^Kafka sink 'out': .*does not accept these credentials.*sasl_", message), message
    source = kafka.source(server.secured.bootstrap, topic, schema="id bigint", **options()).make()
    source.restore(None, [])
    with pytest.raises(EpochalError) as failed_source:
        source.plan(SliceLimits(None))
    assert "does not accept these credentials" in checked_message(failed_source.value, server, "not-the-password")


def test_changed_password_blocks_the_commit_until_it_is_corrected(
    server: KafkaServer, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_with_rights(server, *DESCRIBING, AclOperation.WRITE)
    backend = sink(server, topic, tmp_path, options())
    backend.recover(AT_START)
    handle = pre_commit(backend, epoch(1), rows(1))
    later = sink(server, topic, tmp_path, options())
    monkeypatch.setenv(VARIABLE, "not-the-password")
    with pytest.raises(SinkError, match="does not accept these credentials") as failed:
        later.commit(epoch(1), [handle])
    assert "Kafka sink main.out.0" in checked_message(failed.value, server, "not-the-password")
    monkeypatch.setenv(VARIABLE, server.secured.password)
    later.commit(epoch(1), [handle])
    assert ids(server, topic) == [1]


def test_certificate_of_another_authority_is_rejected(server: KafkaServer, options: Options, tmp_path: Path) -> None:
    topic = topic_with_rights(server, *DESCRIBING, AclOperation.WRITE)
    other = tmp_path / "other.pem"
    request = ["-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "key"), "-subj", "/CN=other"]
    subprocess.run(["openssl", "req", *request, "-out", str(other)], check=True, capture_output=True, timeout=60)
    with pytest.raises(SinkError) as failed:
        sink(server, topic, tmp_path, options(ssl_ca_location=str(other))).recover(AT_START)
    assert re.search(
        r"Kafka sink 'out': .*certificates: check the sasl_ and ssl_", checked_message(failed.value, server)
    )


@pytest.mark.parametrize(
    ("rights", "message"),
    [
        ((), r"Kafka sink 'out': .*"),
        (DESCRIBING, r"Kafka sink main\.out\.0: .*could not commit epoch 1.*no permission.*grant it"),
    ],
    ids=["none", "no-write"],
)
def test_missing_rights_are_reported(
    server: KafkaServer, options: Options, tmp_path: Path, rights: tuple[AclOperation, ...], message: str
) -> None:
    topic = topic_with_rights(server, *rights)
    backend = sink(server, topic, tmp_path, options())

    def run() -> None:
        backend.recover(AT_START)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])

    with pytest.raises(SinkError) as failed:
        run()
    assert re.search(message, checked_message(failed.value, server), re.DOTALL), failed.value.message
    assert ids(server, topic) == []


def test_cause_of_a_stopped_transaction_is_reported(server: KafkaServer, options: Options) -> None:
    """After an early refusal the client reports only that it cannot accept the next record."""
    topic = topic_with_rights(server, *DESCRIBING)
    connection = Connection(server.secured.bootstrap, options())
    producer = RecordProducer(connection, None, transactional_id=f"{BRANCH}.out.0")
    producer.client.init_transactions(30)
    producer.client.begin_transaction()
    record = (topic, -1, None, b"{}", None, 0)

    def put_until_stopped() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            producer.put(record)
            producer.client.poll(0.05)

    with pytest.raises(KafkaException) as stopped:
        put_until_stopped()
    error = kafka_error(stopped.value)
    assert error.code() == KafkaError._STATE
    assert producer.cause(error).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_literal_passwords_are_rejected(server: KafkaServer) -> None:
    with pytest.raises(OptionError, match="sasl_password must be a secret") as failed:
        kafka.sink(server.secured.bootstrap, "out", sasl_password=server.secured.password)
    assert server.secured.password not in failed.value.message
