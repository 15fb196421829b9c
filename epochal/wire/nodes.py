from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from epochal.wire.bodies import Answer, Open


class NodeAnswer(Answer):
    """One process that ``epochal up`` is, on the same catalog."""

    id: str = Field(description="Another one after each start.")
    role: Open[Literal["control", "query"]]
    state: Open[Literal["alive", "gone"]] = Field(
        description="`gone`: not heard for ten seconds; it did not stop in order. Left out after an hour."
    )
    version: str
    host: str
    process: int
    url: str = Field(description="Where people reach it.")
    internal_url: str | None = Field(description="Where drivers reach it; null: it does not answer drivers.")
    started_at: datetime
    heartbeat_at: datetime = Field(description="By the catalog's clock.")
