"""A Kafka broker of its own: one node that is broker and controller (KRaft), from the jars that Maven fetches."""

from __future__ import annotations

import base64
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from epochal.testing.servers.maven import SHORT_LIVED, artifacts, class_path, java
from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, accepts, free_port
from epochal.testing.servers.proxy import TcpProxy

VERSION = "4.1.1"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
MEMORY = ("-Xms128m", "-Xmx512m")
START_SECONDS = 60
LISTENER = "SECURED"
USER = "epochal"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_MODULES = "org.apache.kafka.common.security"


class KafkaServer:
    """A broker on a loopback port that stays the same over restarts; its data stays too.

    It has a second listener, which it tells its clients to reach through ``proxy``: they come there by
    :attr:`bootstrap_through_proxy`.
    """

    def __init__(self, folder: Path, jars: Path, port: int, proxy: TcpProxy, secured: SecuredListener | None) -> None:
        self.port = port
        self.proxy = proxy
        self._secured = secured
        self._folder = folder
        self._jars = jars
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """What a client takes as ``bootstrap.servers``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def bootstrap_through_proxy(self) -> str:
        """The same, for clients whose every connection goes through :attr:`proxy`."""
        return f"{LOOPBACK}:{self.proxy.port}"

    @property
    def secured(self) -> SecuredListener:
        """The listener with TLS and passwords, of a broker that was started with one."""
        if self._secured is None:
            raise ServerUnavailable("This Kafka broker has no secured listener: start it with kafka(secured=True).")
        return self._secured

    @property
    def process(self) -> ServerProcess:
        if self._process is None:
            raise ServerUnavailable("This Kafka broker has not been started.")
        return self._process

    def start(self) -> None:
        """Start it and wait until it answers. Raises ``ServerUnavailable``."""
        command = _command(self._jars, "kafka.Kafka", self._folder / "server.properties")
        self._process = ServerProcess("Kafka", command, self._folder / "server.log", directory=self._folder)
        self._process.wait_until(self._answers, START_SECONDS)

    def stop(self) -> None:
        """An orderly end."""
        self.process.stop(seconds=20)

    def kill(self) -> None:
        """SIGKILL: no goodbye to anybody."""
        self.process.stop(signal.SIGKILL)

    def restart(self, kill: bool = False) -> None:
        """End and start again, on the same port with the same data."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block the broker does not answer, but its connections stay open (SIGSTOP)."""
        self.process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send(signal.SIGCONT)

    def create_topic(
        self, partitions: int = 1, prefix: str = "topic", name: str | None = None, **configuration: str
    ) -> str:
        """A new topic and its name, made up unless given; settings as ``retention_ms="1000"``."""
        name = name or f"{prefix}-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in configuration.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        deadline = time.monotonic() + 30
        while not self._has(admin, name):
            if time.monotonic() > deadline:
                raise ServerUnavailable(f"Kafka made topic {name}, but does not show it.")
            time.sleep(0.02)
        return name

    def alter_topic(self, topic: str, **configuration: str) -> None:
        """Change settings of a topic, as ``max_message_bytes="1000"``."""
        changes = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in configuration.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(30)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _has(self, admin: AdminClient, topic: str) -> bool:
        """Whether clients see the topic: a moment after it was created."""
        try:
            return bool(admin.describe_topics(TopicCollection([topic]))[topic].result(30).partitions)
        except KafkaException:
            return False

    def _answers(self) -> bool:
        if not accepts(self.port):
            return False
        try:
            return bool(self.admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return False


@contextmanager
def kafka(secured: bool = False, **settings: str) -> Iterator[KafkaServer]:
    """A broker with an empty data folder; stopped and removed at the end.

    ``secured``: with one more listener, see :class:`SecuredListener`. ``settings`` are the broker's, with ``_`` for
    ``.``, over those that a test needs. Raises ``ServerUnavailable`` where Java, Maven or the network is missing.
    """
    jars = artifacts(f"kafka-{VERSION}", COORDINATES)
    folder = Path(tempfile.mkdtemp(prefix="epochal-kafka-"))
    listener = secured_listener(folder) if secured else None
    ports = _Ports(free_port(), behind_proxy=free_port(), controller=free_port())
    server = KafkaServer(folder, jars, ports.plain, TcpProxy(ports.behind_proxy), listener)
    try:
        properties = {key.replace("_", "."): value for key, value in settings.items()}
        properties = {
            **_addresses(ports, server.proxy.port, listener),
            **(listener.settings() if listener else {}),
            **properties,
        }
        _write_settings(folder, properties)
        _format(folder, jars, listener.format_arguments() if listener else [])
        server.start()
        yield server
    finally:
        if server._process is not None:
            server._process.stop(signal.SIGKILL)
        server.proxy.close()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Ports:
    plain: int
    behind_proxy: int
    controller: int


def _addresses(ports: _Ports, proxy: int, secured: SecuredListener | None) -> dict[str, str]:
    """Where the broker listens, and what it tells its clients: of the listener behind the proxy, the proxy's port."""
    clients = {"PLAINTEXT": (ports.plain, ports.plain), "PROXIED": (ports.behind_proxy, proxy)}
    protocols = {"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    if secured is not None:
        clients[LISTENER] = secured.port, secured.port
        protocols[LISTENER] = "SASL_SSL"
    listening = [f"{name}://{LOOPBACK}:{port}" for name, (port, _) in clients.items()]
    return {
        "listeners": ",".join([*listening, f"CONTROLLER://{LOOPBACK}:{ports.controller}"]),
        "advertised.listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, (_, port) in clients.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
    }


def _write_settings(folder: Path, settings: dict[str, str]) -> None:
    needed = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Checked often, so that what a test waits for to expire does expire.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "1000",
        "log.segment.delete.delay.ms": "100",
    }
    lines = (f"{name}={value}\n" for name, value in {**needed, **settings}.items())
    (folder / "server.properties").write_text("".join(lines))


def _format(folder: Path, jars: Path, more: Sequence[str]) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Said with "=": an id that begins with "-" would be taken for an option.
    arguments = ["format", f"--cluster-id={cluster}", "-c", str(folder / "server.properties"), *more]
    formatting = ServerProcess(
        "Kafka's storage tool",
        _command(jars, "kafka.tools.StorageTool", *arguments),
        folder / "format.log",
        directory=folder,
    )
    formatting.wait_for_success(seconds=60)


def _command(jars: Path, main: str, *arguments: str | Path) -> Sequence[str | Path]:
    return [java(), *MEMORY, *SHORT_LIVED, "-cp", class_path(jars), main, *arguments]


@dataclass(frozen=True)
class SecuredListener:
    """A listener for :data:`USER`, by SASL's PLAIN and SCRAM-SHA-512 over TLS; the user has no rights at first.

    Clients of the broker's other listeners are anonymous, and may do everything.
    """

    port: int
    password: str
    authority: Path
    """The certificate that clients are to trust (PEM)."""
    _store: Path
    _store_password: str

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def settings(self) -> dict[str, str]:
        """Of the broker, beside the listener's address."""
        prefix = f"listener.name.{LISTENER.lower()}"
        return {
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{prefix}.plain.sasl.jaas.config": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="'
            f'{self.password}";',
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{prefix}.ssl.keystore.type": "PKCS12",
            f"{prefix}.ssl.keystore.location": str(self._store),
            f"{prefix}.ssl.keystore.password": self._store_password,
            f"{prefix}.ssl.key.password": self._store_password,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
        }

    def format_arguments(self) -> list[str]:
        """For Kafka's storage tool: SCRAM's passwords are part of the cluster's metadata."""
        return ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={self.password}]"]


def secured_listener(folder: Path) -> SecuredListener:
    """Make the certificate, with the JDK's own tool, below ``folder``. Raises ``ServerUnavailable``."""
    store, authority, password = folder / "broker.p12", folder / "broker.pem", secrets.token_hex(12)
    access = ["-alias", "broker", "-keystore", str(store), "-storetype", "PKCS12", "-storepass", password]
    certificate = ["-keyalg", "EC", "-dname", "CN=localhost", "-ext", f"SAN=IP:{LOOPBACK},DNS:localhost"]
    _keytool("-genkeypair", *access, "-keypass", password, *certificate, "-validity", "30")
    _keytool("-exportcert", "-rfc", *access, "-file", str(authority))
    return SecuredListener(free_port(), secrets.token_hex(12), authority, store, password)


def _keytool(*arguments: str) -> None:
    tool = Path(java()).with_name("keytool")
    try:
        ran = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"A certificate could not be made: {error}.") from error
    if ran.returncode != 0:
        raise ServerUnavailable(f"A certificate could not be made: {(ran.stdout + ran.stderr).strip()[:300]}")
