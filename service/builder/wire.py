"""What the control plane asks of a builder process, and what that answers: one JSON document each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.comparison import TableComparison
from epochal.engine.settings import Configuration
from epochal.engine.trial import SinkComparison
from epochal.pipeline.description import GraphDescription


class TrialOf(BaseModel):
    """The last ``epochs`` epochs up to ``head`` of an application, in the store at ``store``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    application: str
    store: str
    head: ManifestReference
    epochs: int


class RekeyOf(BaseModel):
    """The state of ``head`` in the key groups of the request's configuration, as the snapshot ``at``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    application: str
    store: str
    head: ManifestReference
    at: EpochKey
    by: str
    message: str | None = None


class BuildRequest(BaseModel):
    """``describe`` needs no Spark; the others start a local session. ``seconds``: then the child is ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["describe", "analyse", "trial", "rekey"]
    artifact: Path
    parameters: dict[str, Any]
    configuration: Configuration = Configuration()
    seconds: float
    memory_bytes: int | None = None
    trial: TrialOf | None = None
    rekey: RekeyOf | None = None


class BuildError(BaseModel):
    """An :class:`epochal.errors.EpochalError`, by its slug."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slug: str
    message: str


class TrialAnswer(BaseModel):
    """See :class:`epochal.engine.trial.TrialReport`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TableComparison, ...]
    sinks: tuple[SinkComparison, ...]


class BuildAnswer(BaseModel):
    """An error, or what was asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    graph: GraphDescription | None = None
    trial: TrialAnswer | None = None
    snapshot: ManifestReference | None = None
    error: BuildError | None = None
