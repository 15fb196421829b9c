"""What the control plane asks of a builder process, and what that answers: one JSON document each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from epochal.engine.settings import Configuration
from epochal.pipeline.description import GraphDescription


class BuildRequest(BaseModel):
    """``describe`` needs no Spark; ``analyse`` starts a local session. ``seconds``: then the child is ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["describe", "analyse"]
    artifact: Path
    parameters: dict[str, Any]
    configuration: Configuration = Configuration()
    seconds: float
    memory_bytes: int | None = None


class BuildError(BaseModel):
    """An :class:`epochal.errors.EpochalError`, by its slug."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slug: str
    message: str


class BuildAnswer(BaseModel):
    """Exactly one of the two is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    graph: GraphDescription | None = None
    error: BuildError | None = None
