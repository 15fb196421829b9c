"""A Kafka cluster as a pipeline names it: its settings by allow-list, and the client's errors in Epochal's words."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from epochal.addresses import check_servers
from epochal.errors import EpochalError, OptionError, SinkError, SinkUnavailable, SourceError
from epochal.pipeline.definitions import check_options
from epochal.secrets import Secret, revealed, without_secrets

ANSWER_SECONDS = 15.0
"""How long an answer is waited for before the cluster counts as unreachable."""

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
"""What goes by itself: a broker restarts, a partition gets another leader."""
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
# What the client says of each broken connection is said again, in one error, by whoever needed the connection.
_log.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Connection:
    """``servers``: ``host:port,host:port``. ``options``: of the allow-list, with ``_`` for ``.``; secrets by reference.

    Serialisable. ``error``: what a failure is raised as, ``SinkError`` or ``SourceError``. ``who`` begins its message.
    """

    servers: str
    options: Mapping[str, Any] = field(default_factory=dict)
    error: type[SinkError] | type[SourceError] = SinkError
    who: str = ""

    def settings(self, **more: Any) -> dict[str, Any]:
        """For a client of confluent-kafka, secrets looked up; ``more`` (with ``_`` for ``.``) come first."""
        options = {"bootstrap_servers": self.servers, **revealed({**self.options, **more})}
        # Without a callback of its own, a client writes its errors to standard error.
        settings: dict[str, Any] = {"logger": _log, "error_cb": _ignored}
        return {
            **settings,
            **{name.replace("_", ".") if name not in settings else name: options[name] for name in options},
        }

    def watched(self, **more: Any) -> tuple[dict[str, Any], Complaints]:
        """Settings, and what the client complains of in the background while it tries again and again."""
        complaints = Complaints()
        return self.settings(error_cb=complaints.hear, **more), complaints

    def translate(self, error: KafkaError, what: str, complaint: KafkaError | None = None) -> EpochalError:
        """``error``, met while trying to ``what`` (``commit epoch 7``), as Epochal says it."""
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
            kind = SinkUnavailable if self.error is SinkError else BrokersAway
        who = f"{self.who}: " if self.who else ""
        return kind(f"{who}Kafka at {self.servers}: could not {what}: {text}. {fix}")

    @contextmanager
    def translated(self, what: str, complaints: Complaints | None = None) -> Iterator[None]:
        """Inside the block, the client's errors become Epochal's."""
        try:
            yield
        except KafkaException as error:
            raise self.translate(kafka_error(error), what, complaints.last if complaints else None) from error


class BrokersAway(SourceError):
    """No broker answers a source: nothing is wrong with the application, and nothing is lost by waiting."""


class Complaints:
    """The last error that a client reported of itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: KafkaError | None = None

    def hear(self, error: KafkaError) -> None:
        with self._lock:
            # What explains the broken connections that follow is kept: refused credentials, and that no broker is left.
            explained = self._last is not None and self._last.code() in _CREDENTIALS | {KafkaError._ALL_BROKERS_DOWN}
            if not explained or error.code() in _CREDENTIALS:
                self._last = error

    @property
    def last(self) -> KafkaError | None:
        with self._lock:
            return self._last

    @property
    def hopeless(self) -> bool:
        """No broker is there, or none lets the client in: waiting for an answer to what was asked leads nowhere."""
        last = self.last
        return last is not None and (last.code() == KafkaError._ALL_BROKERS_DOWN or last.code() in _CREDENTIALS)


def connection(
    what: str, servers: str, options: Mapping[str, Any], allowed: frozenset[str], error: type[SinkError | SourceError]
) -> Connection:
    """A connection for ``kafka.source`` or ``kafka.sink``. Raises ``OptionError`` for what cannot be one."""
    if not str(servers).strip():
        raise OptionError(f"{what} needs the brokers' addresses: 'host:9092,other:9092'.")
    check_servers(what, str(servers))
    check_options(what, options, allowed)
    for name, value in options.items():
        if name in SECRET_OPTIONS and not isinstance(value, Secret):
            raise OptionError(f"{what}: {name} is given by reference: {name}=secret('env:NAME').")
    return Connection(servers, dict(options), error)


def kafka_error(error: KafkaException) -> KafkaError:
    """The error inside the exception."""
    inner: Any = next(iter(error.args), None)
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))


def _ignored(error: KafkaError) -> None:
    """Temporary: the client tries again by itself, and whoever waits for it gets an error of their own in the end."""
