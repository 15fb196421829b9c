"""What the control plane asks of a builder process, and what that answers: one JSON document each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from epochal.contracts.catalog import ManifestReference
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


class BuildRequest(BaseModel):
    """``describe`` needs no Spark; the others start a local session. ``seconds``: then the child is ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["describe", "analyse", "trial"]
    artifact: Path
    parameters: dict[str, Any]
    configuration: Configuration = Configuration()
    seconds: float
    memory_bytes: int | None = None
    trial: TrialOf | None = None


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
    error: BuildError | None = None
