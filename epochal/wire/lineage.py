from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from epochal.contracts.catalog import Change, EpochCounts, EpochState
from epochal.contracts.configuration import Parameters
from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Open
from epochal.wire.history import SourceRange

EdgeKind = Literal[
    "epoch",
    "start",
    "fork",
    "rollback",
    "import",
    "upgrade",
    "rescale",
    "parameters",
    "sinks",
    "configuration",
    "version",
]


class LineageNode(Answer):
    """A prepared or committed snapshot, or a folded run of plain ones, ``first`` to ``epoch``: then ``epochs`` is more
    than 1, and the counts are sums. ``artifact``, ``parameters``: the version that made it. ``collected``: its files
    are gone, it can only be looked at here."""

    branch: str
    epoch: int
    first: int
    epochs: int
    application: str
    state: Open[EpochState]
    version: int
    artifact: str
    filename: str
    parameters: Parameters
    changes: list[Change]
    savepoints: list[str]
    tags: list[str]
    pinned: bool
    message: str | None
    counts: EpochCounts
    committed_at: datetime | None
    collected: bool

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


class LineageLabel(Answer):
    """Who did what ``kind`` says, when and why, and what it was done with from then on."""

    by: str | None
    at: datetime | None
    message: str | None
    version: int
    artifact: str
    parameters: Parameters


class LineageEdge(Answer):
    """``from`` is the parent. ``epoch``: nothing but another epoch. ``start``: a new branch of the same application,
    begun from an older snapshot. ``label`` is null for plain epochs. ``slices``: what was read on the way, by source;
    null when it was not asked for, or cannot be told any more."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    source: EpochKey = Field(alias="from")
    target: EpochKey = Field(alias="to")
    kind: Open[EdgeKind]
    label: LineageLabel | None
    slices: dict[str, SourceRange] | None


class LineageAnswer(Answer):
    """Newest first. ``head`` is the latest snapshot of the current branch."""

    application: str
    head: EpochKey | None
    nodes: list[LineageNode]
    edges: list[LineageEdge]
    next_cursor: str | None
