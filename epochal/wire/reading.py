"""What the requests of all look-ups share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

Isolation = Literal["read_committed", "read_uncommitted"]

DEFAULT_WAIT_SECONDS = 5.0

WaitSeconds = Annotated[float, Field(ge=0, le=30, description="Wait at most so long for min_epoch.")]
