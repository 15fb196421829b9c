"""Connection to a Kafka cluster: settings by allow-list, and translation of the client's errors into Epochal's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from epochal.addresses import check_servers
from epochal.errors import EpochalError, OptionError, SinkError, SinkUnavailable, SourceError, SourceUnavailable
from epochal.pipeline.definitions import check_options
from epochal.secrets import Secret, revealed, without_secrets

ANSWER_SECONDS = 15.0
"""Timeout for an answer, after which the cluster counts as unreachable."""

SECRET_OPTIONS = frozenset({"sasl_password", "ssl_key_password"})
COMMON_OPTIONS = frozenset(
    {
        "security_protocol",
        "sasl_mechanism",
        "sasl_username",
        "sasl_password",
        "sasl_kerberos_service_name",
        "sasl_kerberos_principal",
        "sasl_kerberos_keytab",
        "ssl_ca_location",
        "ssl_certificate_location",
        "ssl_key_location",
        "ssl_key_password",
        "ssl_endpoint_identification_algorithm",
        "client_id",
        "client_dns_lookup",
        "socket_timeout_ms",
        "socket_keepalive_enable",
        "broker_address_family",
    }
)
PRODUCER_OPTIONS = COMMON_OPTIONS | {
    "compression_type",
    "linger_ms",
    "batch_size",
    "queue_buffering_max_kbytes",
}
CONSUMER_OPTIONS = COMMON_OPTIONS | {
    "fetch_min_bytes",
    "fetch_wait_max_ms",
    "fetch_message_max_bytes",
    "max_partition_fetch_bytes",
    "queued_max_messages_kbytes",
    "check_crcs",
}

_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
PASSING = _UNREACHABLE | {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
}
"""Transient errors: a broker restarts, a partition gets another leader."""
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_CREDENTIALS = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL})
_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

_log = logging.getLogger("epochal.kafka")
# The caller that needs the connection raises one error with the cause; the client's log would only repeat it.
_log.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Connection:
    """Connection settings. ``servers``: ``host:port,host:port``. ``options``: names of the allow-list, with ``_`` for
    ``.``.

    Serialisable; secrets are given by reference. ``error``: class of failures, ``SinkError`` or ``SourceError``.
    ``subject``: prefix of their messages.
    """

    servers: str
    options: Mapping[str, Any] = field(default_factory=dict)
    error: type[SinkError] | type[SourceError] = SinkError
    subject: str = ""

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return settings for a client of confluent-kafka, with secrets revealed; ``more`` (``_`` for ``.``) takes
        precedence."""
        options = {"bootstrap_servers": self.servers, **revealed({**self.options, **more})}
        # Without a callback, a client writes its errors to standard error.
        settings: dict[str, Any] = {"logger": _log, "error_cb": _ignored}
        return {
            **settings,
            **{name.replace("_", ".") if name not in settings else name: options[name] for name in options},
        }

    def watched(self, **more: Any) -> tuple[dict[str, Any], Complaints]:
        """Return settings, and a record of the errors that the client reports in the background while it retries."""
        complaints = Complaints()
        return self.settings(error_cb=complaints.record, **more), complaints

    def translate(self, error: KafkaError, what: str, complaint: KafkaError | None = None) -> EpochalError:
        """Translate ``error``, raised by an attempt to ``what`` (``commit epoch 7``), into Epochal's error."""
        cause = complaint if complaint is not None and complaint.code() in _CREDENTIALS else error
        text = without_secrets(cause.str(), self.options)
        code = cause.code()
        if code in _CREDENTIALS:
            fix = "Kafka does not accept these credentials or certificates: check the sasl_ and ssl_ options."
        elif code in _REFUSED:
            fix = "The user has no permission for this: grant it (ACL), or use another user."
        elif code in _NO_TOPIC:
            fix = "There is no such topic or partition: create it, or correct its name."
        elif code == KafkaError.MSG_SIZE_TOO_LARGE:
            fix = "Raise the topic's max.message.bytes, or lower the sink's batch_size to it."
        elif code in _UNREACHABLE:
            fix = "No broker there answers: check the address, the network and that Kafka runs."
        else:
            fix = "See the broker's log for the reason."
        kind = self.error
        if code in PASSING:
            kind = SinkUnavailable if self.error is SinkError else SourceUnavailable
        prefix = f"{self.subject}: " if self.subject else ""
        return kind(f"{prefix}Kafka at {self.servers}: could not {what}: {text}. {fix}")

    @contextmanager
    def translated(self, what: str, complaints: Complaints | None = None) -> Iterator[None]:
        """Translate the client's errors in the block into Epochal's."""
        try:
            yield
        except KafkaException as error:
            raise self.translate(kafka_error(error), what, complaints.last if complaints else None) from error


class Complaints:
    """The last error that a client reported in the background."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: KafkaError | None = None

    def record(self, error: KafkaError) -> None:
        with self._lock:
            # Keep the error that explains later broken connections: refused credentials, or no broker left.
            explained = self._last is not None and self._last.code() in _CREDENTIALS | {KafkaError._ALL_BROKERS_DOWN}
            if not explained or error.code() in _CREDENTIALS:
                self._last = error

    @property
    def last(self) -> KafkaError | None:
        with self._lock:
            return self._last

    @property
    def hopeless(self) -> bool:
        """Return whether the client should stop waiting: no broker is reachable, or all refuse the client."""
        last = self.last
        return last is not None and (last.code() == KafkaError._ALL_BROKERS_DOWN or last.code() in _CREDENTIALS)


def connection(
    what: str, servers: str, options: Mapping[str, Any], allowed: frozenset[str], error: type[SinkError | SourceError]
) -> Connection:
    """Return a connection for ``kafka.source`` or ``kafka.sink``. Raises ``OptionError`` for invalid settings."""
    if not str(servers).strip():
        raise OptionError(f"{what} needs the brokers' addresses: 'host:9092,other:9092'.")
    check_servers(what, str(servers))
    check_options(what, options, allowed)
    for name, value in options.items():
        if name in SECRET_OPTIONS and not isinstance(value, Secret):
            raise OptionError(f"{what}: {name} must be a secret: {name}=secret('env:NAME').")
    return Connection(servers, dict(options), error)


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the error inside the exception."""
    inner: Any = next(iter(error.args), None)
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))


def _ignored(error: KafkaError) -> None:
    """Ignore a transient error: the client retries automatically, and the waiting caller gets an error in the end."""
