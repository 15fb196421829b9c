"""``kafka.sink``: checks the options and creates the backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from epochal.backends.kafka.avro import AvroEncoder, parsed
from epochal.backends.kafka.backend import KafkaBackend, KafkaSinkSettings
from epochal.backends.kafka.connection import PRODUCER_OPTIONS, connection
from epochal.backends.kafka.encoding import FORMATS, ColumnEncoder, Encoder, JsonEncoder
from epochal.backends.kafka.records import RecordShape, names_of
from epochal.connectors.sink_modes import Mode, check_delivery, described, described_delivery, taken_by_keys
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.errors import OptionError, SinkError
from epochal.pipeline.definitions import SinkDefinition, check_choice, check_positive
from epochal.secrets import redacted

Format = Literal["json", "string", "raw", "avro"]
DELIVERIES: tuple[Delivery, ...] = ("exactly_once", "at_least_once")
SHORTEST_TIMEOUT = 10.0


def sink(
    servers: str,
    topic: str | None = None,
    *,
    format: Format = "json",
    value: str | Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    topic_column: str | None = None,
    schema: str | None = None,
    mode: Mode = "append",
    delivery: Delivery | None = None,
    shards: int = 1,
    create: int | None = None,
    marker_topic: str | None = None,
    transaction_timeout_seconds: float = 60.0,
    transaction_records: int = 10_000_000,
    **options: Any,
) -> SinkDefinition:
    """Write records to a topic. The records of an epoch become visible atomically to ``read_committed`` consumers.

    - ``value``: columns of the record's value. One column for the formats ``string`` and ``raw``, any number for
      ``json`` and ``avro`` (which requires ``schema``). Default: all columns without another role.
    - ``key``: one column, written as text or bytes, or several columns, written as JSON.
    - ``headers``: map column. ``timestamp``: timestamp column.
    - ``partition``: int column. Default: the key determines the partition, as in Kafka's Java producer.
    - ``topic_column``: column with each row's topic; ``topic`` is the default for nulls.
    - ``mode``: ``append`` accepts append-only streams and, if ``key`` names their key columns, upsert streams (such as
      the result of ``aggregate``): the latest record of a key is then its current value, and the topic can be
      compacted. ``updates`` writes a record for each changed row, regardless of its key.
    - ``delivery``: ``at_least_once`` makes tasks write records as they run; records of a slice that is run again are
      duplicated. Default: the application's ``guarantee``.
    - ``shards``: number of transactions per epoch. Each becomes visible separately.
    - ``create``: number of partitions with which a missing topic is created. Default: do not create it.
    - ``transaction_records``: maximum number of records that become visible atomically; a larger epoch becomes visible
      in parts.
    - ``options``: options of the Kafka client, with ``_`` for ``.`` (``security_protocol``,
      ``sasl_password=secret('env:NAME')``, ``compression_type``, ..).

    Raises ``OptionError``.
    """
    what = "kafka.sink"
    check_choice(what, "format", format, FORMATS)
    check_delivery(what, delivery, DELIVERIES, "a topic keeps every record, also a repeated one")
    for name, number in {"shards": shards, "create": create, "transaction_records": transaction_records}.items():
        check_positive(what, name, number, whole=True)
    check_positive(what, "transaction_timeout_seconds", transaction_timeout_seconds, whole=False)
    if transaction_timeout_seconds < SHORTEST_TIMEOUT:
        raise OptionError(f"{what}: transaction_timeout_seconds is less than {SHORTEST_TIMEOUT:g}. Raise it.")
    if topic is None and topic_column is None:
        raise OptionError(f"{what} needs a topic, or a column that names it: topic_column='..'.")
    settings = KafkaSinkSettings(
        connection=connection(what, servers, options, PRODUCER_OPTIONS, SinkError),
        shape=RecordShape(
            encoder=_encoder(what, format, schema),
            topic=topic,
            topic_column=topic_column,
            value=names_of(value),
            key=names_of(key),
            headers=headers,
            timestamp=timestamp,
            partition=partition,
        ),
        shards=shards,
        create=create,
        marker_topic=marker_topic,
        transaction_timeout_seconds=transaction_timeout_seconds,
        transaction_records=transaction_records,
    )
    return SinkDefinition(
        kind="kafka",
        make=partial(_backend, settings),
        description={
            "servers": servers,
            "topic": topic or f"column {topic_column}",
            "format": format,
            **described_delivery(delivery),
            **described(mode),
            **redacted(options),
        },
        takes=taken_by_keys(what, mode, "key", _replaced_by(settings.shape)),
        deliveries=DELIVERIES,
        delivery=delivery,
    )


def _replaced_by(shape: RecordShape) -> tuple[str, ...]:
    """Columns by which a record replaces an earlier one. Records replace each other only within a partition."""
    places = {name for name in (shape.topic_column, shape.partition) if name is not None}
    return shape.key if places <= set(shape.key) else ()


def _encoder(what: str, format: str, schema: str | None) -> Encoder:
    if format == "avro":
        if schema is None:
            raise OptionError(f"{what}: format='avro' needs schema: the Avro schema of a record, as JSON.")
        parsed(schema)
        return AvroEncoder(schema)
    if schema is not None:
        raise OptionError(f"{what}: schema is for format='avro'; with {format!r} the columns determine it.")
    return JsonEncoder() if format == "json" else ColumnEncoder(text=format == "string")


def _backend(settings: KafkaSinkSettings, place: SinkPlace) -> SinkBackend:
    return KafkaBackend(place, settings)
