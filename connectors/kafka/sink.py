"""``kafka.sink``: options to a backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from epochal.backends.kafka.avro import AvroEncoder, parsed
from epochal.backends.kafka.backend import KafkaBackend, KafkaSinkSettings
from epochal.backends.kafka.connection import PRODUCER_OPTIONS, connection
from epochal.backends.kafka.encoding import FORMATS, ColumnEncoder, Encoder, JsonEncoder
from epochal.backends.kafka.records import RecordShape, names_of
from epochal.connectors.deliveries import check_delivery, described_delivery
from epochal.connectors.sink_modes import Mode, described, taken_by_keys
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
    """Records in a topic; those of an epoch appear at once to a ``read_committed`` reader, whatever fails.

    ``value`` names the columns of the value: one for ``format`` ``string`` and ``raw``, any number for ``json`` and
    ``avro`` (which needs ``schema``); none means all that are nothing else. ``key`` is one column (as text, or bytes),
    or several (as JSON). ``headers`` is a map column, ``timestamp`` a timestamp, ``partition`` an int; without one, the
    key decides as in Kafka's Java producer. ``topic_column`` names each row's topic; ``topic`` is for its nulls.

    ``mode`` ``append`` takes rows that stay, and new values of keys (what ``aggregate`` gives) where ``key`` names
    their key columns: the newest record of a key is then its value, and the topic may be compacted. ``updates`` writes
    a record for each row that changed, whatever its key.

    ``delivery`` ``at_least_once``: tasks write as they run, and a slice that is run again is there again; without it,
    as the application's ``guarantee`` says.

    ``create``: make the topic, with so many partitions, when it is missing. ``shards``: so many transactions an epoch,
    each visible by itself. ``transaction_records``: a larger epoch appears in parts. ``options`` are the client's, with
    ``_`` for ``.`` (``security_protocol``, ``sasl_password=secret('env:NAME')``, ``compression_type``, ..). Raises
    ``OptionError``.
    """
    what = "kafka.sink"
    check_choice(what, "format", format, FORMATS)
    check_delivery(what, delivery, DELIVERIES, "a topic keeps every record, also one that is there again")
    for name, number in {"shards": shards, "create": create, "transaction_records": transaction_records}.items():
        check_positive(what, name, number, whole=True)
    check_positive(what, "transaction_timeout_seconds", transaction_timeout_seconds, whole=False)
    if transaction_timeout_seconds < SHORTEST_TIMEOUT:
        raise OptionError(f"{what}: transaction_timeout_seconds is less than {SHORTEST_TIMEOUT:g}. Give it more.")
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
    """The columns by which a record takes the place of an earlier one: in one partition of one topic alone."""
    places = {name for name in (shape.topic_column, shape.partition) if name is not None}
    return shape.key if places <= set(shape.key) else ()


def _encoder(what: str, format: str, schema: str | None) -> Encoder:
    if format == "avro":
        if schema is None:
            raise OptionError(f"{what}: format='avro' needs schema: the Avro schema of a record, as JSON.")
        parsed(schema)
        return AvroEncoder(schema)
    if schema is not None:
        raise OptionError(f"{what}: schema is for format='avro'; with {format!r} the columns say it all.")
    return JsonEncoder() if format == "json" else ColumnEncoder(text=format == "string")


def _backend(settings: KafkaSinkSettings, place: SinkPlace) -> SinkBackend:
    return KafkaBackend(place, settings)
