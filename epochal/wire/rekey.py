from __future__ import annotations

from pydantic import Field

from epochal.wire.bodies import Body, Message


class Rekey(Body):
    """Other key groups for an application that does not run."""

    max_parallelism: int = Field(ge=1, le=32768, description="Key groups from now on.")
    parallelism: int | None = Field(None, ge=1, description="Left out: as it is, at most max_parallelism.")
    message: Message | None = None
