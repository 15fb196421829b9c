"""Kafka without a broker: options, offsets, records, Avro."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from epochal import secret
from epochal.backends.kafka.avro import arrow_schema, decoder
from epochal.backends.kafka.connection import Connection
from epochal.backends.kafka.records import key_text, sizes
from epochal.connectors import kafka
from epochal.connectors.kafka.decoding import CORRUPT, OFFSET, PARTITION, TOPIC, VALUE
from epochal.connectors.kafka.frames import record_format
from epochal.connectors.kafka.offsets import OffsetRange, grouped, limited, moved, ranges_between
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.errors import EpochalError, OptionError, SchemaError, SinkError, SinkUnavailable, SourceError

SERVERS = "broker:9092"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
AVRO = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}
)


def sink(*arguments: Any, **options: Any) -> SinkBackend:
    return kafka.sink(SERVERS, *arguments, **options).make(SinkPlace("out"))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "misspelt": (
        lambda: sink("t", compresion_type="lz4"),
        "no option 'compresion_type'. Did you mean 'compression_type'?",
    ),
    "a password in plain text": (
        lambda: sink("t", sasl_password="hunter2"),
        "must be a secret: sasl_password=secret('env:NAME')",
    ),
    "no topic": (lambda: sink(), "needs a topic, or a column that names it"),
    "no servers": (lambda: kafka.sink(" ", "t"), "needs the brokers' addresses"),
    "no shards": (lambda: sink("t", shards=0), "shards is 0"),
    "a short timeout": (
        lambda: sink("t", transaction_timeout_seconds=1),
        "transaction_timeout_seconds is less than 10",
    ),
    "another format": (lambda: sink("t", format="xml"), "format is 'xml'"),
    "avro without schema": (lambda: sink("t", format="avro"), "needs schema"),
    "json with avro's schema": (lambda: sink("t", schema=AVRO), "schema is for format='avro'"),
    "no topics": (lambda: kafka.source(SERVERS, schema="id int"), "requires either topics or a pattern"),
    "topics and pattern": (
        lambda: kafka.source(SERVERS, "t", schema="id int", pattern="t"),
        "either topics or a pattern",
    ),
    "no pattern": (lambda: kafka.source(SERVERS, pattern="(", schema="id int"), "is not a regular expression"),
    "a topic twice": (lambda: kafka.source(SERVERS, ["t", "t"], schema="id int"), "named twice"),
    "json without schema": (lambda: kafka.source(SERVERS, "t"), "format='json' needs a schema"),
    "raw with schema": (lambda: kafka.source(SERVERS, "t", "raw", "id int"), "format='raw' takes no schema"),
    "another start": (lambda: kafka.source(SERVERS, "t", "raw", start="now"), "start is 'now'"),  # type: ignore[arg-type]
    "no time zone": (
        lambda: kafka.source(SERVERS, "t", "raw", start=datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        "without a time zone",
    ),
    "a negative offset": (lambda: kafka.source(SERVERS, "t", "raw", start={"t": {0: -1}}), "write {partition: offset}"),
    "no such metadata": (lambda: kafka.source(SERVERS, "t", "raw", metadata=["ofset"]), "Did you mean 'offset'?"),
    "a producer's option": (lambda: kafka.source(SERVERS, "t", "raw", linger_ms=5), "no option 'linger_ms'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_options_are_refused_with_the_fix(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(OptionError) as caught:
        call()
    assert message in caught.value.message
    assert "hunter2" not in caught.value.message


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "no such key": ({"key": "missing"}, "key names column 'missing'"),
    "no such value": ({"value": "missing"}, "value names column 'missing'"),
    "a topic that is a number": ({"topic_column": "id"}, "'id' is bigint, which cannot be a topic"),
    "headers that are text": ({"headers": "name"}, "which cannot be headers"),
    "a time that is text": ({"timestamp": "name"}, "which cannot be a record's timestamp"),
    "a partition that is text": ({"partition": "name"}, "which cannot be a partition"),
    "several columns as text": ({"format": "string"}, "the value is one column; name it"),
    "a number as bytes": ({"format": "raw", "value": "id"}, "format='raw' cannot write"),
    "a column without Avro field": ({"format": "avro", "schema": AVRO}, "has no field 'at'"),
    "an Avro field without column": ({"format": "avro", "schema": AVRO, "value": "id"}, "needs a column 'name'"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unsuitable_columns_are_refused_before_the_first_row(case: str) -> None:
    options, message = UNFIT[case]
    with pytest.raises(SchemaError) as caught:
        sink("t", **options).check(SCHEMA)
    assert message in caught.value.message
    assert "Kafka sink 'out'" in caught.value.message


def test_secrets_are_not_in_messages_descriptions_or_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    definition = kafka.sink(SERVERS, "t", sasl_username="me", sasl_password=secret("env:KAFKA_PASSWORD"))
    backend = definition.make(SinkPlace("out"))
    pickled: bytes = cloudpickle.dumps(backend)  # type: ignore[no-untyped-call]
    connection = Connection(SERVERS, {"sasl_password": secret("env:KAFKA_PASSWORD")})
    error = connection.translate(KafkaError(KafkaError._AUTHENTICATION, "hunter2 is wrong"), "connect")
    assert connection.settings()["sasl.password"] == "hunter2"
    for text in (repr(definition), json.dumps(dict(definition.description)), backend.target, error.message):
        assert "hunter2" not in text
    assert b"hunter2" not in pickled
    assert "*** is wrong" in error.message


def test_backend_can_be_pickled() -> None:
    backend: SinkBackend = pickle.loads(cloudpickle.dumps(sink("t")))  # type: ignore[no-untyped-call]
    assert backend.target == "kafka:broker:9092/t"


@pytest.mark.parametrize(
    ("error", "code", "kind", "fix"),
    [
        (SinkError, KafkaError._ALL_BROKERS_DOWN, SinkUnavailable, "No broker there answers"),
        (SinkError, KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkError, "no permission"),
        (SinkError, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, SinkError, "no permission"),
        (SinkError, KafkaError._AUTHENTICATION, SinkError, "does not accept these credentials"),
        (SourceError, KafkaError.UNKNOWN_TOPIC_OR_PART, SourceError, "no such topic"),
        (SourceError, KafkaError._TIMED_OUT, SourceError, "No broker there answers"),
    ],
)
def test_client_errors_are_reported_with_the_fix(
    error: type[SinkError | SourceError], code: int, kind: type[EpochalError], fix: str
) -> None:
    connection = Connection(SERVERS, {}, error)
    with pytest.raises(kind) as caught, connection.translated("do this"):
        raise KafkaException(KafkaError(code))
    assert caught.value.message.startswith("Kafka at broker:9092: could not do this: ")
    assert fix in caught.value.message


ranges = st.lists(
    st.builds(
        lambda partition, start, length: OffsetRange("t", partition, start, start + length),
        st.integers(0, 200),
        st.integers(0, 10**12),
        st.integers(1, 10**9),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda range: range.partition,
)


@given(ranges, st.integers(1, 10**10))
def test_limit_is_respected_and_every_partition_advances(given_ranges: list[OffsetRange], limit: int) -> None:
    cut = limited(given_ranges, limit)
    assert sum(range.length for range in cut) <= max(limit, len(given_ranges))
    for before, after in zip(given_ranges, cut, strict=True):
        assert after.start == before.start < after.end <= before.end


@given(ranges, st.integers(1, 8))
def test_ranges_are_distributed_without_loss(given_ranges: list[OffsetRange], tasks: int) -> None:
    groups = grouped(given_ranges, tasks)
    assert len(groups) == min(tasks, len(given_ranges))
    assert all(groups)
    assert sorted(range for group in groups for range in group) == sorted(given_ranges)


@given(ranges)
def test_ranges_between_positions_are_the_original_ranges(given_ranges: list[OffsetRange]) -> None:
    start = {"t": {range.partition: range.start for range in given_ranges}, "idle": {0: 5}}
    assert ranges_between(start, moved(start, given_ranges)) == sorted(given_ranges)


def test_largest_ranges_get_separate_tasks() -> None:
    sizes_of = [
        [range.length for range in group]
        for group in grouped([OffsetRange("t", n, 0, s) for n, s in enumerate((9, 1, 5, 3))], 2)
    ]
    assert sizes_of == [[9], [5, 3, 1]]


def test_size_of_a_record_includes_its_headers() -> None:
    schema = sink("t", headers="h", key="k", value="v", format="raw")
    rows = pa.table(
        {
            "k": pa.array([b"12", None], pa.binary()),
            "v": pa.array([b"123", None], pa.binary()),
            "h": pa.array([[("name", b"value")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    shape = schema._settings.shape  # type: ignore[attr-defined]
    small, smaller = sizes(shape.encode("sink", rows.to_batches()[0])).to_pylist()
    assert small - smaller == 2 + 3 + len("name") + len(b"value") + 10


def test_keys_in_messages_are_readable() -> None:
    assert key_text(None) == "null"
    assert key_text("é".encode()) == "'é'"
    assert key_text(b"\xff\x00") == "'ff00'"
    assert key_text(b"a\nb") == "'a?b'"
    assert len(key_text(b"x" * 500)) < 90


def test_unsupported_avro_schemas_are_refused() -> None:
    union = json.dumps({"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]})
    with pytest.raises(SchemaError, match="'u' is a union of several types"):
        arrow_schema(union)
    for broken in ("{", '"int"', '{"type": "record"}'):
        with pytest.raises(SchemaError):
            sink("t", format="avro", schema=broken)


def test_avro_value_with_trailing_bytes_is_refused() -> None:
    encoded = pa.table({"id": [1], "name": ["x"]}).to_batches()[0]
    backend = sink("t", format="avro", schema=AVRO)
    (value,) = backend._settings.shape.encoder.values("sink", encoded).to_pylist()  # type: ignore[attr-defined]
    assert decoder(AVRO)(value) == {"id": 1, "name": "x"}
    with pytest.raises(ValueError, match="1 bytes are left over"):
        decoder(AVRO)(value + b"\x00")


def test_a_row_that_does_not_fit_its_avro_schema_is_shown() -> None:
    backend = sink("t", format="avro", schema=AVRO)
    row = pa.table({"id": pa.array([None], pa.int64()), "name": ["x"]}).to_batches()[0]
    with pytest.raises(SinkError, match=r"the row \{'id': None, 'name': 'x'\} does not fit the Avro schema"):
        backend._settings.shape.encode("Kafka sink 'out'", row)  # type: ignore[attr-defined]


def test_json_value_with_other_than_one_object_is_malformed(spark: SparkSession) -> None:
    """Spark's parsing of the values that a task has read. Other tests use a broker."""
    values = {
        '{"k":"a","n":1}': True,
        ' {"k":"}","z":[{"q":1}]} ': True,
        None: True,  # a tombstone
        '{"k":"a"}{"k":"b"}': False,
        '{"k":"a"} garbage': False,
        '[{"k":"a"},{"k":"b"}]': False,
        '{"k":"a"}]} {"r":[{"k":"b"}': False,
        "null": False,
        "": False,
        '{"n":"x"}': False,
    }
    format = record_format("kafka.source", "json", "k string, n int", "value", (), "string", "fail")
    rows = [(value, None, "t", 0, offset) for offset, value in enumerate(values)]
    types = f"{VALUE} string, {CORRUPT} string, {TOPIC} string, {PARTITION} int, {OFFSET} bigint"
    found = format._parsed(spark.createDataFrame(rows, types)).orderBy(OFFSET).collect()
    assert [row[CORRUPT] is None for row in found] == list(values.values())
    assert [row.k for row in found[:3]] == ["a", "}", None]
    assert "offset 3 of topic t, partition 0" in found[3][CORRUPT]
