from __future__ import annotations

from pydantic import BaseModel, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance
from epochal.wire.bodies import Answer, Body, Message


class Rekey(Body):
    """Other key groups for an application that does not run."""

    max_parallelism: int = Field(ge=1, le=32768, description="Key groups from now on.")
    parallelism: int | None = Field(None, ge=1, description="Left out: as it is, at most max_parallelism.")
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences between the latest version and the snapshot, where this version has not committed an "
        "epoch. They have to be accepted again.",
    )


class RekeyArguments(BaseModel):
    """Of an operation of kind ``rekey``. ``branches``: those that its tries have written, by name."""

    request: Rekey
    branches: list[str] = []


class RekeyResult(Answer):
    """The result of an operation of kind ``rekey``."""

    version: int
    branch: str
    epoch: int
