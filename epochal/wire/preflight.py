from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from epochal.contracts.identity import EpochKey
from epochal.engine.trial import TrialReport
from epochal.pipeline.description import GraphDescription
from epochal.state.evolution import TableChange
from epochal.wire.bodies import Answer, Body, EpochNumber, Name, Sha256


class Preflight(Body):
    """A version that might be, and the snapshot that it would go on from: by default the latest committed one.

    What is left out stays as in the latest version; ``configuration`` is merged over the present one.
    """

    application: Name
    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    artifact: Sha256 | None = None
    parameters: dict[str, Any] | None = None
    configuration: dict[str, Any] = Field(default_factory=dict)
    trial: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Also run the last so many epochs up to the snapshot again, in shadow, and compare what comes out.",
    )


class PartChange(Answer):
    """An operator, a source or a sink. ``before`` and ``after``: its type, or where a sink writes."""

    name: str
    verdict: Literal["same", "added", "removed", "changed"]
    before: str | None
    after: str | None


class Comparison(Answer):
    """``problems`` say why the version cannot go on from the snapshot; none: it can. ``warnings`` are to be known."""

    operators: tuple[PartChange, ...]
    tables: tuple[TableChange, ...]
    sources: tuple[PartChange, ...]
    sinks: tuple[PartChange, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class PreflightAnswer(Answer):
    """``ok``: the version can go on from ``snapshot`` (null: there is none yet). ``graph`` is what would run."""

    ok: bool
    application: str
    snapshot: EpochKey | None
    comparison: Comparison
    restarts: bool
    """Whether it would take effect by a restart, because Spark's resources change, not at an epoch boundary."""
    graph: GraphDescription
    trial: TrialReport | None = None
