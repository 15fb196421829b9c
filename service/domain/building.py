"""Requests to a builder process and its answers, one JSON document each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import EpochRange, ManifestReference, RestorePoint
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Configuration, Parameters
from epochal.contracts.identity import EpochKey
from epochal.contracts.inbox import CallBatch
from epochal.engine.trial_report import TrialReport
from epochal.pipeline.description import GraphDescription


class Describe(BaseModel):
    """Describe the graph, without Spark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["describe"] = "describe"


class Analyse(BaseModel):
    """Analyse the graph over empty inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["analyse"] = "analyse"


class Producer(BaseModel):
    """The version that created a snapshot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifact: Path
    parameters: Parameters
    configuration: Configuration


class TrialOf(BaseModel):
    """The last ``epochs`` epochs up to ``head`` of an application, in the store at ``store``; ``producer`` ran them.
    ``name``: name of the trial's folders. ``calls``: the calls of entries that these epochs took, because the trial
    cannot access the inbox."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["trial"] = "trial"
    application: str
    store: str
    head: ManifestReference
    epochs: int
    name: str | None = None
    producer: Producer
    calls: tuple[CallBatch, ...] = ()


class RekeyOf(BaseModel):
    """Write the state of ``head`` in the key groups of the request's configuration, as the snapshot ``at``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["rekey"] = "rekey"
    application: str
    store: str
    head: ManifestReference
    at: EpochKey
    by: str
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED


class ShownOf(BaseModel):
    """Read what the sinks show of a branch; ``at``: its latest decided epoch, 0 before the first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["shown"] = "shown"
    application: str
    at: EpochKey
    attempt: int
    store: str


class RestorePointsOf(BaseModel):
    """Find the versions of the tables of ``sinks`` before the epochs that a rollback leaves behind, by branch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["restore-points"] = "restore-points"
    store: str
    sinks: tuple[str, ...]
    left: dict[str, EpochRange]


Work = Describe | Analyse | TrialOf | RekeyOf | ShownOf | RestorePointsOf


class BuildRequest(BaseModel):
    """``seconds``: time limit of the child. ``secrets``: environment variables of the pipeline's project."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifact: Path
    parameters: Parameters
    configuration: Configuration = Configuration()
    seconds: float
    memory_bytes: int | None = None
    secrets: Mapping[str, str] = Field(default={}, repr=False)
    work: Work = Field(discriminator="kind")


AS_EVER, FOR_WARM = b".", b"w"
"""Header of a request: whether a child with a started Spark session can answer it."""


ONCE = "once"
"""Last argument of a builder process that answers a single request."""


_OF_OTHER_PROCESSES: Final = ("spark.kubernetes.", "spark.executor.")
"""Options of Spark without effect on a process without executors."""
_OF_SIZES: Final = ("spark.driver.memory", "spark.driver.cores")
"""Options without effect on an analysis, which is small for every application."""


def suits_warm(request: BuildRequest) -> bool:
    """Return whether a process with a default Spark session can answer the request."""
    match request.work:
        case Analyse() | TrialOf() as work:  # these have a master of their own
            meaningless = _OF_OTHER_PROCESSES if isinstance(work, TrialOf) else (*_OF_OTHER_PROCESSES, *_OF_SIZES)
            return all(option.startswith(meaningless) for option in request.configuration.spark)
        case RekeyOf():
            usual = Configuration()
            return (request.configuration.master, request.configuration.spark) == (usual.master, usual.spark)
        case _:
            return False


class BuildError(BaseModel):
    """An :class:`epochal.errors.EpochalError`, identified by its slug."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slug: str
    message: str


class BuildAnswer(BaseModel):
    """An error or the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    graph: GraphDescription | None = None
    trial: TrialReport | None = None
    snapshot: ManifestReference | None = None
    shown: dict[str, int | None] | None = None
    restore_points: dict[str, RestorePoint] | None = None
    error: BuildError | None = None


@dataclass(frozen=True)
class Builds:
    """Builds of pipelines: numbers of running and waiting builds, and their limits."""

    running: int
    waiting: int
    running_limit: int
    waiting_limit: int
