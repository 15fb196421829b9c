"""The graph of snapshots."""

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
    """A prepared or committed snapshot, or a folded run of plain epochs ``first`` to ``epoch`` with ``epochs`` > 1 and
    summed counts. ``artifact``, ``parameters``: those of the version that created it. ``collected``: its files
    have been deleted."""

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
    """Author, time and message of a change, and the resulting version."""

    by: str | None
    at: datetime | None
    message: str | None
    version: int
    artifact: str
    parameters: Parameters


class LineageEdge(Answer):
    """An edge from the parent. Kind ``epoch``: a plain epoch; ``start``: a new branch of the same application from an
    older snapshot. ``label`` is null for plain epochs. ``slices``: input by source; null if not requested or
    expired."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    source: EpochKey = Field(alias="from")
    target: EpochKey = Field(alias="to")
    kind: Open[EdgeKind]
    label: LineageLabel | None
    slices: dict[str, SourceRange] | None


MOST_TOGETHER = 50
"""Maximum number of applications whose lineage one request reads."""


class LineagesAnswer(Answer):
    """Nodes of several applications and of those that they were forked from or to, newest first, folded, and edges.
    ``heads``: latest snapshot of the current branch of each of these applications."""

    heads: dict[str, EpochKey | None]
    nodes: list[LineageNode]
    edges: list[LineageEdge]
    next_cursor: str | None


class LineageAnswer(Answer):
    """Nodes, newest first, and edges. ``head``: latest snapshot of the current branch. ``heads``: those of the
    application and of all that it was forked from or to, by name."""

    application: str
    head: EpochKey | None
    heads: dict[str, EpochKey | None] = Field(default_factory=dict)
    nodes: list[LineageNode]
    edges: list[LineageEdge]
    next_cursor: str | None
