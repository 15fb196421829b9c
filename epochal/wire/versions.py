from __future__ import annotations

from datetime import datetime

from pydantic import Field

from epochal.contracts.catalog import Failure
from epochal.contracts.parameters import Parameters
from epochal.wire.bodies import Answer, Body, Message, Sha256
from epochal.wire.configuration import ApplicationConfiguration, ConfigurationAnswer
from epochal.wire.graphs import GraphAnswer


class CreateVersion(Body):
    """What is left out stays as in the latest version; what is given replaces it."""

    artifact: Sha256 | None = None
    parameters: Parameters | None = None
    configuration: ApplicationConfiguration | None = None
    message: Message | None = None


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
    failure: Failure | None
    operation: str | None = None
    created_at: datetime
    created_by: str
