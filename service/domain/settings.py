"""The settings of a control plane. Each has a default; all that is written lies below the data directory."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from epochal.service.domain.identity import OidcSettings
from epochal.service.domain.kubernetes.settings import KubernetesSettings
from epochal.service.domain.proxies import Network

IN_PODS = "kubernetes"
"""The launcher whose drivers are pods; there pipelines are built in pods, too."""
HOME_VARIABLE = "EPOCHAL_HOME"
DRIVER_USER_VARIABLE = "EPOCHAL_DRIVER_USER"
WEBHOOKS_LOCAL_VARIABLE = "EPOCHAL_WEBHOOKS_LOCAL"
ADMIN_TOKEN_VARIABLE = "EPOCHAL_ADMIN_TOKEN_FILE"
WARM_DRIVERS_VARIABLE = "EPOCHAL_WARM_DRIVERS"


def default_data_directory() -> Path:
    """``$EPOCHAL_HOME``, or ``~/.local/share/epochal``."""
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured) if configured else Path.home() / ".local" / "share" / "epochal"


def default_driver_user() -> str | None:
    """``$EPOCHAL_DRIVER_USER``."""
    return os.environ.get(DRIVER_USER_VARIABLE) or None


def default_webhooks_local() -> bool:
    """``$EPOCHAL_WEBHOOKS_LOCAL``."""
    return os.environ.get(WEBHOOKS_LOCAL_VARIABLE, "") not in ("", "0")


def default_given_token() -> Path | None:
    """``$EPOCHAL_ADMIN_TOKEN_FILE``."""
    configured = os.environ.get(ADMIN_TOKEN_VARIABLE)
    return Path(configured) if configured else None


@dataclass(frozen=True)
class Pools:
    """How many connections to the catalog a control plane has at most. None takes another's.

    ``drivers``: what answers drivers; as many calls are answered at the same time. ``supervision``: the supervisor and
    this control plane's own heartbeat. ``leadership``: the lease by which it leads. ``requests``: everything else.
    """

    requests: int
    supervision: int
    leadership: int
    drivers: int

    @classmethod
    def of(cls, total: int) -> Pools:
        supervision, leadership, drivers = 3, 2, total // 4
        return cls(total - supervision - leadership - drivers, supervision, leadership, drivers)


class Limits(BaseModel):
    """Bounds on what a request may send, in bytes; how long answers are kept for its Idempotency-Key; how many builds
    of pipelines run and wait at the same time, before a further one is answered with 429."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body_bytes: int = Field(default=8 << 20, gt=0)
    artifact_bytes: int = Field(default=64 << 20, gt=0)
    artifact_unpacked_bytes: int = Field(default=512 << 20, gt=0)
    bundle_bytes: int = Field(default=1 << 40, gt=0)
    bundle_unpacked_bytes: int = Field(default=1 << 42, gt=0)
    bundle_part_bytes: int = Field(default=64 << 20, gt=0)
    bodies_bytes: int = Field(default=128 << 20, gt=0)
    """Memory for the bodies of all requests that one process has in progress; further ones are answered with 503."""
    small_body_bytes: int = Field(default=64 << 10, gt=0)
    """Bodies up to this size have memory of their own, which large ones cannot use up."""
    small_bodies_bytes: int = Field(default=16 << 20, gt=0)
    spare_disk_bytes: int = Field(default=256 << 20, ge=0)
    """So much of a disk stays free of what is uploaded."""
    idempotency_hours: float = Field(default=24.0, gt=0)
    call_bytes: int = Field(default=64 << 10, gt=0)
    """Arguments of one call of an entry, as JSON."""
    calls_waiting: int = Field(default=100_000, gt=0)
    """Calls of an application's entries that no epoch has taken yet."""
    connections: int = Field(default=4_000, gt=0)
    """Of one process at a time, or half of the files that it may open; then those that ask for nothing are ended."""
    head_seconds: float = Field(default=15.0, gt=0)
    """So long the head of a request may take; it may be twice as long, but for the first of a connection."""
    head_bytes: int = Field(default=64 << 10, gt=0)
    body_pause_seconds: float = Field(default=30.0, gt=0)
    """So long nothing of a body may come."""
    body_bytes_per_second: int = Field(default=1 << 10, gt=0)
    """What comes more slowly all in all, after the time of a pause, is given up."""
    followers: int = Field(default=500, gt=0)
    """Streams of events and followed logs of one process at a time."""
    calls_per_second: float = Field(default=500.0, gt=0)
    """Of one token, on average, to one process; look-ups by key and calls of entries do not count."""
    changes_per_second: float = Field(default=100.0, gt=0)
    """So many of them may change something."""
    burst_seconds: float = Field(default=10.0, gt=0)
    """What a token may do in so long it may do at once."""
    builds: int = Field(default=4, gt=0, le=8)
    builds_waiting: int = Field(default=8, ge=0, le=16)

    @model_validator(mode="after")
    def _bodies_fit(self) -> Self:
        largest = max(self.body_bytes, self.artifact_bytes, self.bundle_part_bytes)
        if self.bodies_bytes < largest or self.small_bodies_bytes < self.small_body_bytes:
            raise ValueError(f"bodies_bytes must be at least {largest}, so that the largest body is ever accepted")
        return self


class Kept(BaseModel):
    """How long the catalog keeps rows that nothing needs any more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    events: int = Field(default=10_000, ge=1)
    """So many of each application's events, for listeners that come back."""
    events_days: float = Field(default=7.0, gt=0)
    """None that is older, but for the last."""
    audit_days: float = Field(default=365.0, gt=0)
    calls_days: float = Field(default=1.0, gt=0)
    """Calls of entries, and their request ids, at least so long; and for as long as a rollback can go back to before
    they were taken."""
    epochs: int = Field(default=10_000, ge=1)
    """So many of each branch's epochs one by one; older ones that were collected are folded into ranges."""


class Tls(BaseModel):
    """Files (PEM): a certificate, with those that lead to its authority behind it, and its key without a passphrase."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: Path
    key: Path


class Settings(BaseModel):
    """The configuration of one control plane process.

    ``database`` and ``store`` are URLs (SQLAlchemy, fsspec); ``None`` is the embedded default below ``data``.
    ``authentication`` may be switched off on loopback only.

    ``internal_host`` and ``internal_port`` are where drivers are answered, by a process of its own. Without a port the
    public app answers them, too: for tests, and for whoever embeds the app. ``advertised_url`` and
    ``advertised_internal_url``: what people, and drivers, call instead of the address that is listened on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Path = Field(default_factory=default_data_directory)
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    internal_host: str = "127.0.0.1"
    internal_port: int | None = Field(default=None, ge=0, le=65535)
    advertised_url: str | None = None
    advertised_internal_url: str | None = None
    connections: int = Field(default=64, ge=12)
    """To the catalog, of this control plane's processes together; :class:`Pools` says who gets how many."""
    database: str | None = None
    store: str | None = None
    authentication: bool = True
    given_admin_token: Path | None = Field(default_factory=default_given_token)
    """A file with the admin token, the same for all control planes of a catalog. ``None``: each makes its own."""
    tls: Tls | None = None
    """Of the public port; ``None``: it speaks plain HTTP."""
    internal_tls: Tls | None = None
    """Of the internal port. Drivers trust the authorities in ``EPOCHAL_CA_FILE``."""
    oidc: OidcSettings | None = None
    """The identity provider of people; ``None``: there are tokens of ``/v1/tokens`` only."""
    launcher: str = "local"
    kubernetes: KubernetesSettings | None = None
    """Of the launcher ``kubernetes``."""
    driver_user: str | None = Field(default_factory=default_driver_user)
    """The user of builders and drivers, by name or number. ``None``: see ``epochal.service.runtime.isolation``."""
    warm_drivers: int = Field(default=0, ge=0, le=16)
    """So many processes with Spark started are kept for drivers, and as many for what is built with Spark."""
    collect_every_seconds: float | None = Field(default=3600.0, gt=0)
    """How often what no retained snapshot needs is deleted; ``None``: only when somebody asks for it."""
    grace_seconds: float = Field(default=3600.0, ge=0)
    """Files younger than this are never deleted, nor those of snapshots that expired less long ago."""
    log_bytes: int = Field(default=16 << 20, gt=0)
    """A driver's log that is larger is rotated."""
    log_files: int = Field(default=3, ge=1)
    """Rotated files that are kept of a driver's log."""
    log_days: float = Field(default=30.0, gt=0, le=36500)
    """How long the log of a driver that is gone is kept."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of proxies whose ``X-Forwarded-For`` says from where a call comes; of others it is not read."""
    webhooks_local: bool = Field(default_factory=default_webhooks_local)
    """Whether webhooks may be on this machine or its link; otherwise such addresses are refused."""
    limits: Limits = Limits()
    kept: Kept = Kept()

    def check_project(self, project: str) -> None:
        """Raises ``OptionError`` where drivers of the project have no place to run."""
        if self.kubernetes is not None:
            self.kubernetes.namespace(project)

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data.absolute() / 'catalog.sqlite'}"

    @property
    def store_url(self) -> str:
        return self.store or str(self.data.absolute() / "store")

    @property
    def artifact_cache_directory(self) -> Path:
        """Copies of artifacts, for builders."""
        return self.data.absolute() / "artifact-cache"

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
        """What spare drivers have on disk, and drivers that were spares."""
        return self.data.absolute() / "spares"

    @property
    def pods_directory(self) -> Path:
        """What the control plane's processes say to each other of pods that it keeps."""
        return self.data.absolute() / "pods"

    @property
    def home_directory(self) -> Path:
        """The home of the user that builders and drivers run as, when that is not the control plane's."""
        return self.data.absolute() / "home"

    @property
    def admin_token_file(self) -> Path:
        """Of a token that this control plane makes for itself, where none is given."""
        return self.data.absolute() / "admin.token"

    @property
    def token_file(self) -> Path:
        """Where the admin token is."""
        return self.given_admin_token or self.admin_token_file

    @property
    def pools(self) -> Pools:
        return Pools.of(self.connections)

    @property
    def url(self) -> str:
        """Where this control plane listens."""
        return _url(self.host, self.port, self.tls)

    @property
    def public_url(self) -> str:
        """Where people reach this control plane."""
        return self.advertised_url or _url(_reachable(self.host), self.port, self.tls)

    @property
    def internal_url(self) -> str:
        """Where drivers reach this control plane."""
        if self.advertised_internal_url is not None:
            return self.advertised_internal_url
        if self.internal_port is None:
            return self.url
        return _url(_reachable(self.internal_host), self.internal_port, self.internal_tls)


def _url(host: str, port: int, tls: Tls | None) -> str:
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _reachable(host: str) -> str:
    """Who listens on all addresses is reached by this machine's name."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
