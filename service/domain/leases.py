"""How long a lease is good for, and who may take it: pure.

A lease in the catalog is held by one process for a while, by the database's clock, and is renewed. It prevents that two
do the same at once, no more: whoever writes data is fenced by the attempt. The holder counts from before it has sent
the renewal, on a clock of its own that nobody sets, and stops a margin earlier: so it needs no clock that agrees with
another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

LEADER = "leader"
"""The lease of the control plane that supervises, schedules collections and lets rows expire."""


class LeaseSettings(BaseModel):
    """Times in seconds.

    ``lease``: one that was not renewed for so long may be taken. ``renew``: how often its holder renews it. ``margin``:
    so long before the lease is over its holder has stopped. ``look``: how often others ask for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_seconds: float = Field(default=6.0, gt=0)
    renew_seconds: float = Field(default=2.0, gt=0)
    margin_seconds: float = Field(default=1.0, ge=0)
    look_seconds: float = Field(default=1.0, gt=0)


@dataclass(frozen=True)
class Holder:
    """``id`` is of one object in one process, and never used again; the rest is for people, and to find out whether the
    process is gone: only its own machine can."""

    id: str
    host: str
    boot: str
    process: str

    def __str__(self) -> str:
        return f"the control plane on {self.host} (process {self.process.partition('@')[0]})"


@dataclass(frozen=True)
class Lease:
    """A lease as the catalog has it. ``term`` rises with each holder."""

    holder: Holder
    term: int
    expires_at: datetime


@dataclass(frozen=True)
class Grant:
    """A lease that was acquired or renewed ``at`` a moment of the database's clock."""

    term: int
    at: datetime


IsGone = Callable[[Holder], bool]
"""Whether a holder's process does certainly not run any more."""


def may_take(lease: Lease | None, moment: datetime, claimant: Holder, is_gone: IsGone) -> bool:
    """May ``claimant`` take it at ``moment``? Its own is one whose answer was lost."""
    return lease is None or lease.holder.id == claimant.id or lease.expires_at <= moment or is_gone(lease.holder)


def may_renew(lease: Lease | None, term: int, moment: datetime, claimant: Holder) -> bool:
    """One that is over is not renewed, even if nobody has taken it: its holder has to begin a new term."""
    return lease is not None and lease.holder.id == claimant.id and lease.term == term and moment < lease.expires_at
