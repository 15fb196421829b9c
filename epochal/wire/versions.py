from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from epochal.contracts.catalog import Failure
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.wire.bodies import Answer, Body, Message, Sha256
from epochal.wire.configuration import ApplicationConfiguration, ConfigurationAnswer
from epochal.wire.graphs import GraphAnswer


def accepted(changed: Sequence[str], partial: Sequence[str]) -> dict[str, Any]:
    """The field ``acceptance`` of a body; each name is ``OPERATOR`` or ``OPERATOR.COLUMN``."""
    return {"changed": list(changed), "partial": list(partial)}


class CreateVersion(Body):
    """What is left out stays as in the latest version; what is given replaces it."""

    artifact: Sha256 | None = None
    parameters: Parameters | None = None
    configuration: ApplicationConfiguration | None = None
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences from the state of the latest snapshot that this version accepts by name. "
        "It holds for this upgrade only; a name that is no difference is refused.",
    )


class Rescale(Body):
    parallelism: int = Field(ge=1, description="Subtasks per operator, at most max_parallelism.")
    message: Message | None = None


class VersionAnswer(Answer):
    """``operation`` puts the version in place of the one that runs; without it, the next start uses the version.

    ``failure``: it was given up, and will not be used.
    """

    number: int
    artifact: str
    parameters: Parameters
    configuration: ConfigurationAnswer
    graph: GraphAnswer | None
    message: str | None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED, description="What the version accepted of the snapshot that it goes on from."
    )
    failure: Failure | None
    operation: str | None = None
    created_at: datetime
    created_by: str
