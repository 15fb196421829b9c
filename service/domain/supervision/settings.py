"""How patient supervision is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SupervisionSettings(BaseModel):
    """Times in seconds.

    ``lease``: a driver that was not heard for so long is lost. ``start``: so long a new driver may take to be heard
    first. ``stop``: so long a driver may take to stop before it is killed. ``round``: pause between two looks at
    everything. ``heartbeat``: how often a supervisor says in the catalog that it is there; ``supervisor``: one that has
    not said so for so long is gone; ``claim``: so long a start waits for that. ``kill_lost_drivers``: switched off only
    by tests that want a lost driver to come back as a zombie.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_seconds: float = Field(default=10.0, gt=0)
    start_seconds: float = Field(default=90.0, gt=0)
    stop_seconds: float = Field(default=120.0, gt=0)
    round_seconds: float = Field(default=0.5, gt=0)
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    supervisor_seconds: float = Field(default=10.0, gt=0)
    claim_seconds: float = Field(default=15.0, ge=0)
    kill_lost_drivers: bool = True
