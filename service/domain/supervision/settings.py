"""How patient supervision is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SupervisionSettings(BaseModel):
    """Times in seconds.

    ``lease``: a driver that was not heard for so long is lost. ``start``: so long a new driver may take to be heard
    first. ``stop``: so long a driver may take to stop before it is killed. ``round``: pause between two looks at
    everything; ``sweep``: between two looks at what is left on this machine of attempts that are over; ``grace``: so
    long the process of an attempt that has ended by itself may take to end, too. ``kill_lost_drivers``: switched off
    only by tests that want a lost driver to come back as a zombie.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_seconds: float = Field(default=10.0, gt=0)
    start_seconds: float = Field(default=90.0, gt=0)
    stop_seconds: float = Field(default=120.0, gt=0)
    round_seconds: float = Field(default=0.5, gt=0)
    sweep_seconds: float = Field(default=5.0, gt=0)
    grace_seconds: float = Field(default=30.0, ge=0)
    kill_lost_drivers: bool = True
