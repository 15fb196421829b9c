from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from epochal.contracts.catalog import Change, EpochCounts, EpochState
from epochal.contracts.identity import EpochKey
from epochal.service.schema import Answer


class LineageNode(Answer):
    """A prepared or committed snapshot. ``artifact``, ``parameters``: the version that made it."""

    branch: str
    epoch: int
    application: str
    state: EpochState
    artifact: str
    parameters: dict[str, Any]
    changes: list[Change]
    savepoints: list[str]
    counts: EpochCounts
    committed_at: datetime | None


class LineageEdge(Answer):
    """``from`` is the parent. ``start``: a new branch of the same application, begun from an older snapshot."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    source: EpochKey = Field(alias="from")
    target: EpochKey = Field(alias="to")
    kind: Literal["epoch", "fork", "start"]


class LineageAnswer(Answer):
    """Newest first. ``head`` is the latest snapshot of the current branch."""

    application: str
    head: EpochKey | None
    nodes: list[LineageNode]
    edges: list[LineageEdge]
    next_cursor: str | None
