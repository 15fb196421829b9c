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
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from epochal.logs import LogFormat
from epochal.service.domain.identity import OidcSettings, read_oidc_settings
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings, read_kubernetes_settings
from epochal.service.domain.proxies import Network, read_trusted_proxies
from epochal.service.domain.setting_sections import OPTION, Kept, Limits, Section, Sessions, Setting, Tls

IN_PODS = "kubernetes"
"""The launcher whose drivers are pods. Pipelines are then also built in pods."""
PREFIX = "EPOCHAL_"
HOME_VARIABLE = f"{PREFIX}HOME"
DRIVER_USER_VARIABLE = f"{PREFIX}DRIVER_USER"
CONSOLE = Path(__file__).parents[1] / "console_files"
"""The console's files in this package."""


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

    ``database`` is a URL of SQLAlchemy, ``store`` that of a folder, an object store or HDFS; ``None`` is the embedded
    default below ``data``. Without ``internal_port`` the public application also answers drivers: for tests, and for
    programs that embed it.
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
    waiting_share: Annotated[float, Setting(option=True, metavar="SHARE")] = Field(
        1.0,
        ge=0,
        description="Size of the files that only wait for the end of the grace period, as a share of the needed ones, "
        "above which collections begin earlier and shorten the grace period, down to 10 minutes. The limit is at least "
        "1 GiB. 0: no limit.",
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
    replica_bytes: int = Field(
        1 << 30,
        ge=0,
        description="Size of the files of a state table, in bytes, above which it has no replica: look-ups read files.",
    )
    warm_drivers: Annotated[
        int | None, Setting(option=True, metavar="N", default="1, or 0 with less than 6 GiB of free memory")
    ] = Field(None, ge=0, le=16, description="Number of processes that wait with Spark started and become drivers.")
    launcher: str = ""
    """Name of the launcher; by default the one that ``kubernetes`` implies. Not for operators."""
    kubernetes: Annotated[
        KubernetesSettings | None,
        BeforeValidator(_kubernetes),
        Setting(option=True, variable=f"{PREFIX}KUBERNETES_FILE", metavar="FILE", default="drivers are processes"),
    ] = Field(
        None,
        description="Run drivers as pods of a cluster, as this JSON file describes (docs/operations/kubernetes.md).",
    )
    tls: Tls | None = None
    """TLS of the public port. ``None``: plain HTTP."""
    internal_tls: Tls | None = None
    """TLS of the internal port. Drivers trust the authorities in ``EPOCHAL_CA_FILE``."""
    oidc: Annotated[
        OidcSettings | None,
        BeforeValidator(_oidc),
        Setting(option=True, variable=f"{PREFIX}OIDC_FILE", metavar="FILE", default="tokens of Epochal only"),
    ] = Field(
        None, description="Also accept tokens of the identity provider in this JSON file (docs/operations/identity.md)."
    )
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
    sessions: Sessions = Sessions()
    limits: Limits = Limits()
    console: Path = CONSOLE
    """Folder with the files of the console. Not for operators."""

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
