"""Settings of a control plane: the one model of their names, defaults, descriptions and limits.

``epochal.cli.settings`` reads values from a file, the environment and options. This module reads no environment, except
for two defaults that processes without a command line need, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from epochal.logs import LogFormat
from epochal.service.domain.identity import OidcSettings, read_oidc_settings
from epochal.service.domain.kubernetes.settings import KubernetesSettings, read_kubernetes_settings
from epochal.service.domain.proxies import Network, read_trusted_proxies

IN_PODS = "kubernetes"
"""The launcher whose drivers are pods. Pipelines are then also built in pods."""
PREFIX = "EPOCHAL_"
HOME_VARIABLE = f"{PREFIX}HOME"
DRIVER_USER_VARIABLE = f"{PREFIX}DRIVER_USER"


@dataclass(frozen=True)
class Setting:
    """How operators address a field.

    ``name``: in the settings file, by default the path of the field (``limits.body_bytes``). ``variable``: the
    environment variable, by default the name in capitals after ``EPOCHAL_``. ``option``: the option of ``epochal up``,
    by default none; ``True``: the name with hyphens. ``default``: the effective default, where the field has none of
    its own. ``secret``: the value is a URL that may hold a password.
    """

    name: str | None = None
    variable: str | None = None
    option: str | bool = False
    metavar: str | None = None
    default: str | None = None
    secret: bool = False


OPTION = Setting(option=True)


def default_data_directory() -> Path:
    """``$EPOCHAL_HOME``, or ``~/.local/share/epochal``."""
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured) if configured else Path.home() / ".local" / "share" / "epochal"


def default_driver_user() -> str | None:
    """``$EPOCHAL_DRIVER_USER``."""
    return os.environ.get(DRIVER_USER_VARIABLE) or None


@dataclass(frozen=True)
class Pools:
    """Maximum number of catalog connections of each part of a control plane. The parts do not share connections.

    ``drivers``: answers to drivers; also the number of calls answered concurrently. ``supervision``: the supervisor and
    the heartbeat of the control plane. ``leadership``: the leader lease. ``requests``: everything else.
    """

    requests: int
    supervision: int
    leadership: int
    drivers: int

    @classmethod
    def of(cls, total: int) -> Pools:
        supervision, leadership, drivers = 3, 2, total // 4
        return cls(total - supervision - leadership - drivers, supervision, leadership, drivers)


class Section(BaseModel):
    """A group of settings: a table of the settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Section):
    """Bounds on requests."""

    body_bytes: int = Field(8 << 20, gt=0, description="Maximum size of a request body, in bytes.")
    artifact_bytes: int = Field(64 << 20, gt=0, description="Maximum size of an artifact, in bytes.")
    artifact_unpacked_bytes: int = Field(512 << 20, gt=0, description="Maximum unpacked size of an artifact, in bytes.")
    bundle_bytes: int = Field(1 << 40, gt=0, description="Maximum size of a bundle, in bytes.")
    bundle_unpacked_bytes: int = Field(1 << 42, gt=0, description="Maximum unpacked size of a bundle, in bytes.")
    bundle_part_bytes: int = Field(64 << 20, gt=0, description="Maximum size of one part of a bundle, in bytes.")
    bodies_bytes: int = Field(
        128 << 20,
        gt=0,
        description="Memory for the bodies of all requests in progress in one process, in bytes. Further requests are "
        "answered with 503.",
    )
    small_body_bytes: int = Field(
        64 << 10, gt=0, description="Bodies up to this size, in bytes, use memory that large bodies cannot exhaust."
    )
    small_bodies_bytes: int = Field(16 << 20, gt=0, description="Memory reserved for small bodies, in bytes.")
    spare_disk_bytes: int = Field(256 << 20, ge=0, description="Disk space that uploads leave free, in bytes.")
    idempotency_hours: float = Field(
        24.0, gt=0, description="Retention of the answer to a request with an Idempotency-Key, in hours."
    )
    call_bytes: int = Field(
        64 << 10, gt=0, description="Maximum size of the arguments of one call of an entry, as JSON, in bytes."
    )
    calls_waiting: int = Field(
        100_000, gt=0, description="Maximum number of calls of an application's entries that no epoch has taken yet."
    )
    connections: int = Field(
        4_000,
        gt=0,
        description="Maximum number of connections to one process, at most half of the files that it may open. Above "
        "it, idle connections are closed.",
    )
    head_seconds: float = Field(
        15.0,
        gt=0,
        description="Timeout for the head of the first request of a connection, in seconds. Later requests have twice "
        "the time.",
    )
    head_bytes: int = Field(64 << 10, gt=0, description="Maximum size of the head of a request, in bytes.")
    body_pause_seconds: float = Field(30.0, gt=0, description="Timeout between two parts of a body, in seconds.")
    body_bytes_per_second: int = Field(
        1 << 10, gt=0, description="Minimum average rate of a body after body_pause_seconds, in bytes per second."
    )
    followers: int = Field(500, gt=0, description="Maximum number of event streams and followed logs of one process.")
    calls_per_second: float = Field(
        500.0,
        gt=0,
        description="Maximum average rate of calls with one token to one process. Look-ups by key and calls of entries "
        "do not count.",
    )
    changes_per_second: float = Field(100.0, gt=0, description="Maximum mutating calls per second, likewise.")
    burst_seconds: float = Field(
        10.0, gt=0, description="A token may make the calls of this many seconds in one burst."
    )
    builds: int = Field(4, gt=0, le=8, description="Maximum number of concurrent builds of pipelines.")
    builds_waiting: int = Field(
        8, ge=0, le=16, description="Maximum number of waiting builds. Further ones are answered with 429."
    )

    @model_validator(mode="after")
    def _bodies_fit(self) -> Self:
        largest = max(self.body_bytes, self.artifact_bytes, self.bundle_part_bytes)
        if self.bodies_bytes < largest or self.small_bodies_bytes < self.small_body_bytes:
            raise ValueError(f"bodies_bytes must be at least {largest}, so that the largest body is ever accepted")
        return self


class Kept(Section):
    """Retention of catalog rows that nothing refers to."""

    events: Annotated[int, Setting(option=True, metavar="N")] = Field(
        10_000, ge=1, description="Maximum number of retained events of each application."
    )
    events_days: Annotated[float, Setting(option="--event-days", metavar="DAYS")] = Field(
        7.0, ge=0.001, le=36500, description="Retention of events, in days. The last one is always retained."
    )
    audit_days: Annotated[float, Setting(option="--audit-days", metavar="DAYS")] = Field(
        365.0, ge=0.001, le=36500, description="Retention of the audit log, in days."
    )
    calls_days: float = Field(
        1.0,
        gt=0,
        description="Minimum retention of calls of entries and their request ids, in days. Calls that a rollback could "
        "return to are retained longer.",
    )
    epochs: Annotated[int, Setting(option=True, metavar="N")] = Field(
        10_000,
        ge=1,
        description="Number of newest epochs of each branch that are listed one by one. Older collected epochs are "
        "folded into ranges.",
    )


class Tls(Section):
    """A certificate, and its key without a passphrase."""

    certificate: Annotated[Path, AfterValidator(Path.absolute), Setting(option=True, metavar="FILE")] = Field(
        description="Certificate chain (PEM) to serve TLS with. The file may be replaced while the process runs."
    )
    key: Annotated[Path, AfterValidator(Path.absolute), Setting(option=True, metavar="FILE")] = Field(
        description="Private key (PEM) of the certificate."
    )


def _oidc(value: object) -> object:
    return read_oidc_settings(Path(value)) if isinstance(value, str | Path) else value


def _kubernetes(value: object) -> object:
    return read_kubernetes_settings(Path(value)) if isinstance(value, str | Path) else value


def _networks(value: object) -> object:
    if isinstance(value, str):
        return read_trusted_proxies(value)
    if isinstance(value, Iterable):
        return tuple(network for item in value for network in read_trusted_proxies(str(item)))
    return value


class Settings(Section):
    """The settings of one control plane process, or of a query node.

    ``database`` and ``store`` are URLs (SQLAlchemy, fsspec); ``None`` is the embedded default below ``data``. Without
    ``internal_port`` the public application also answers drivers: for tests, and for programs that embed it.
    """

    data: Annotated[Path, Setting(name="home", option=True, metavar="DIR", default="~/.local/share/epochal")] = Field(
        default_factory=default_data_directory, description="Data directory."
    )
    host: Annotated[str, OPTION] = Field("127.0.0.1", description="Address to listen on.")
    port: Annotated[int, OPTION] = Field(8765, ge=0, le=65535, description="Port to listen on. 0: any free port.")
    internal_host: Annotated[str, OPTION] = Field(
        "127.0.0.1",
        description="Address on which drivers are answered. Drivers on other machines cannot reach loopback.",
    )
    internal_port: Annotated[int | None, Setting(option=True, default="the port after port")] = Field(
        None, ge=0, le=65535, description="Port on which drivers are answered. 0: any free port."
    )
    advertised_url: Annotated[
        str | None, Setting(name="public_url", option=True, metavar="URL", default="host and port")
    ] = Field(None, description="URL under which clients reach the control plane.")
    advertised_internal_url: Annotated[
        str | None, Setting(name="internal_url", option=True, metavar="URL", default="internal_host and internal_port")
    ] = Field(None, description="URL under which drivers reach the control plane.")
    database: Annotated[
        str | None,
        Setting(name="database_url", option=True, metavar="URL", default="SQLite in the data directory", secret=True),
    ] = Field(None, description="The catalog, SQLite or PostgreSQL. As an option, without a password.")
    store: Annotated[str | None, Setting(option=True, metavar="URL", default="in the data directory", secret=True)] = (
        Field(None, description="Snapshot store.")
    )
    driver_user: Annotated[str | None, Setting(option=True, metavar="USER", default="epochal, or nobody")] = Field(
        default_factory=default_driver_user, description="User of drivers and builders, if the control plane is root."
    )
    authentication: Annotated[bool, OPTION] = Field(
        True, description="Require tokens. May be disabled on loopback only."
    )
    given_admin_token: Annotated[
        Path | None,
        Setting(
            name="admin_token_file",
            option=True,
            metavar="FILE",
            default="each control plane creates one in the data directory",
        ),
    ] = Field(None, description="File with an administrator token that all control planes of a catalog accept.")
    collect_every: Annotated[float, Setting(option=True, metavar="HOURS")] = Field(
        1.0,
        ge=0,
        description="Interval between deletions of files that no retained snapshot needs, in hours. 0: never.",
    )
    grace: Annotated[float, Setting(option=True, metavar="HOURS")] = Field(
        1.0, ge=0, description="Minimum age of files to delete, and time since their snapshots expired, in hours."
    )
    log_size: Annotated[float, Setting(option=True, metavar="MB")] = Field(
        16.0, ge=0.1, description="Size above which the log of a driver is rotated, in MB."
    )
    log_files: Annotated[int, OPTION] = Field(3, ge=1, description="Number of rotated log files of each driver.")
    log_days: Annotated[float, Setting(option=True, metavar="DAYS")] = Field(
        30.0, ge=0.001, le=36500, description="Retention of the logs of terminated drivers, in days."
    )
    kept: Kept = Kept()
    role: Annotated[Literal["control", "query"], OPTION] = Field(
        "control", description="query: answer look-ups only, beside the control planes of the same catalog and store."
    )
    workers: Annotated[int, OPTION] = Field(
        1, ge=1, le=64, description="Number of processes of a query node that answer look-ups."
    )
    warm_drivers: Annotated[
        int | None, Setting(option=True, metavar="N", default="1; with less than 6 GiB of free memory 0")
    ] = Field(None, ge=0, le=16, description="Number of processes that wait with Spark started and become drivers.")
    launcher: str = ""
    """Name of the launcher; by default the one that ``kubernetes`` implies. Not for operators."""
    kubernetes: Annotated[
        KubernetesSettings | None,
        BeforeValidator(_kubernetes),
        Setting(option=True, variable=f"{PREFIX}KUBERNETES_FILE", metavar="FILE", default="drivers are processes"),
    ] = Field(None, description="Run drivers as pods of a cluster, as this JSON file describes (docs/kubernetes.md).")
    tls: Tls | None = None
    """TLS of the public port. ``None``: plain HTTP."""
    internal_tls: Tls | None = None
    """TLS of the internal port. Drivers trust the authorities in ``EPOCHAL_CA_FILE``."""
    oidc: Annotated[
        OidcSettings | None,
        BeforeValidator(_oidc),
        Setting(option=True, variable=f"{PREFIX}OIDC_FILE", metavar="FILE", default="tokens of Epochal only"),
    ] = Field(None, description="Also accept tokens of the identity provider in this JSON file (docs/identity.md).")
    trusted_proxies: Annotated[
        tuple[Network, ...], BeforeValidator(_networks), Setting(option=True, metavar="ADDRESSES", default="none")
    ] = Field(
        (),
        description="IP addresses or CIDR networks of proxies, separated by commas, whose X-Forwarded-For names the "
        "caller.",
    )
    connections: Annotated[int, OPTION] = Field(
        64, ge=12, description="Maximum number of connections to the catalog, a quarter of them for drivers only."
    )
    webhooks_local: bool = Field(
        False, description="Allow webhooks to addresses of this machine and to link-local addresses."
    )
    log_format: Annotated[LogFormat, OPTION] = Field(
        "text", description="Format of logs, also of drivers: text or json."
    )
    limits: Limits = Limits()

    @model_validator(mode="before")
    @classmethod
    def _pods_have_a_launcher(cls, values: object) -> object:
        if isinstance(values, dict) and not values.get("launcher"):
            return {**values, "launcher": "local" if values.get("kubernetes") is None else IN_PODS}
        return values

    def check_project(self, project: str) -> None:
        """Raises ``OptionError`` if drivers of the project have no namespace."""
        if self.kubernetes is not None:
            self.kubernetes.namespace(project)

    @property
    def collect_every_seconds(self) -> float | None:
        """``None``: only on request."""
        return self.collect_every * 3600 or None

    @property
    def grace_seconds(self) -> float:
        return self.grace * 3600

    @property
    def log_bytes(self) -> int:
        return int(self.log_size * (1 << 20))

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data.absolute() / 'catalog.sqlite'}"

    @property
    def store_url(self) -> str:
        return self.store or str(self.data.absolute() / "store")

    @property
    def artifact_cache_directory(self) -> Path:
        """Copies of artifacts for builders."""
        return self.data.absolute() / "artifact-cache"

    @property
    def former_artifacts_directory(self) -> Path:
        """Artifacts written by older versions, which are moved into the store."""
        return self.data.absolute() / "artifacts"

    @property
    def logs_directory(self) -> Path:
        """``{application}/{execution}-{attempt}.log`` below it."""
        return self.data.absolute() / "logs"

    @property
    def replicas_directory(self) -> Path:
        return self.data.absolute() / "replicas"

    @property
    def work_directory(self) -> Path:
        """Drivers' scratch space: ``{execution}`` below it."""
        return self.data.absolute() / "work"

    @property
    def spares_directory(self) -> Path:
        """Files of warm drivers, and of drivers that were warm drivers."""
        return self.data.absolute() / "spares"

    @property
    def pods_directory(self) -> Path:
        """Messages between the control plane's processes about the pods that it maintains."""
        return self.data.absolute() / "pods"

    @property
    def home_directory(self) -> Path:
        """Home of ``driver_user``, if that is not the user of the control plane."""
        return self.data.absolute() / "home"

    @property
    def admin_token_file(self) -> Path:
        """Administrator token that this control plane creates if ``given_admin_token`` is not set."""
        return self.data.absolute() / "admin.token"

    @property
    def token_file(self) -> Path:
        """File with the administrator token."""
        return self.given_admin_token or self.admin_token_file

    @property
    def pools(self) -> Pools:
        return Pools.of(self.connections)

    @property
    def url(self) -> str:
        """URL of the address that this control plane listens on."""
        return _url(self.host, self.port, self.tls)

    @property
    def public_url(self) -> str:
        """URL under which clients reach this control plane."""
        return self.advertised_url or _url(_reachable(self.host), self.port, self.tls)

    @property
    def internal_url(self) -> str:
        """URL under which drivers reach this control plane."""
        if self.advertised_internal_url is not None:
            return self.advertised_internal_url
        if self.internal_port is None:
            return self.url
        return _url(_reachable(self.internal_host), self.internal_port, self.internal_tls)


def _url(host: str, port: int, tls: Tls | None) -> str:
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _reachable(host: str) -> str:
    """The name of this machine for a process that listens on all addresses."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
