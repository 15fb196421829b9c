"""Sections of the settings: limits of requests, retention of catalog rows, TLS."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


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


class Sessions(Section):
    """Duration of the sessions of browsers."""

    hours: float = Field(
        12.0, gt=0, le=8760, description="Maximum duration of a session, in hours. It also ends with its token."
    )
    idle_hours: float = Field(2.0, gt=0, le=8760, description="Time without use after which a session ends, in hours.")

    @property
    def longest(self) -> timedelta:
        return timedelta(hours=self.hours)

    @property
    def longest_pause(self) -> timedelta:
        return timedelta(hours=self.idle_hours)


class Tls(Section):
    """A certificate, and its key without a passphrase."""

    certificate: Annotated[Path, AfterValidator(Path.absolute), Setting(option=True, metavar="FILE")] = Field(
        description="Certificate chain (PEM) to serve TLS with. The file may be replaced while the process runs."
    )
    key: Annotated[Path, AfterValidator(Path.absolute), Setting(option=True, metavar="FILE")] = Field(
        description="Private key (PEM) of the certificate."
    )
