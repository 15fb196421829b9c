"""Leases: their times, and the rules for taking and renewing one. Pure.

A lease in the catalog is held by one process for a limited time (database clock) and is renewed. It avoids duplicate
work only: writers of data are fenced by their attempt. The holder measures its lease on its own monotonic clock,
starting when it sends the renewal, and stops a margin before the end. No clocks have to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

LEADER = "leader"
"""The lease of the control plane that supervises, schedules collections and deletes expired rows."""


class LeaseSettings(BaseModel):
    """Times in seconds.

    ``lease``: time after which a lease that was not renewed can be taken. ``renew``: interval of renewals. ``margin``:
    time before the end of the lease at which its holder stops. ``look``: interval at which others request it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_seconds: float = Field(default=6.0, gt=0)
    renew_seconds: float = Field(default=2.0, gt=0)
    margin_seconds: float = Field(default=1.0, ge=0)
    look_seconds: float = Field(default=1.0, gt=0)


@dataclass(frozen=True)
class Holder:
    """``id`` identifies one object in one process and is never reused. The other values are for people, and tell on the
    same machine whether the process still runs."""

    id: str
    host: str
    boot: str
    process: str

    def __str__(self) -> str:
        return f"the control plane on {self.host} (process {self.process.partition('@')[0]})"


@dataclass(frozen=True)
class Lease:
    """A lease in the catalog. ``term`` increases with each holder."""

    holder: Holder
    term: int
    expires_at: datetime


@dataclass(frozen=True)
class Grant:
    """A lease that was acquired or renewed ``at`` a time of the database clock."""

    term: int
    at: datetime


HasTerminated = Callable[[Holder], bool]
"""Predicate: a holder's process has certainly terminated."""


def may_take(lease: Lease | None, moment: datetime, claimant: Holder, has_terminated: HasTerminated) -> bool:
    """Return whether ``claimant`` may take the lease at ``moment``. It may take its own, whose answer was lost."""
    return lease is None or lease.holder.id == claimant.id or lease.expires_at <= moment or has_terminated(lease.holder)


def may_renew(lease: Lease | None, term: int, moment: datetime, claimant: Holder) -> bool:
    """Return whether the lease may be renewed. An expired lease is not renewed, even if it was not taken: its holder
    has to begin a new term."""
    return lease is not None and lease.holder.id == claimant.id and lease.term == term and moment < lease.expires_at
