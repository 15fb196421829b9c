"""What the control plane answers about the past: histories, blame, scans, differences."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from epochal.client.models import Answer, LineageChange
from epochal.contracts.identity import EpochKey


class ScannedRow(Answer):
    key: dict[str, Any]
    value: dict[str, Any]


class Scan(Answer):
    """Rows in key order, all of one epoch. ``next_cursor``: where to go on, if there are more. ``note``: that the rows
    are panes, and not windows."""

    table: str
    branch: str
    epoch: int
    isolation: str | None = None
    items: tuple[ScannedRow, ...] = ()
    next_cursor: str | None = None
    note: str | None = None


class KeyChange(Answer):
    """One change of one full key; ``old`` and ``new`` are ``None`` where there was no row. ``at``: committed then.
    ``expired``: nobody deleted the row, its time to live is over."""

    branch: str
    epoch: int
    application: str
    at: datetime
    key: dict[str, Any]
    old: dict[str, Any] | None = None
    new: dict[str, Any] | None = None
    expired: bool = False


class KeyHistory(Answer):
    """The changes of a key, newest first. ``known_since``: what was before that snapshot has expired."""

    table: str
    key: dict[str, Any]
    branch: str
    epoch: int
    items: tuple[KeyChange, ...] = ()
    next_cursor: str | None = None
    known_since: EpochKey | None = None
    note: str | None = None


class SourceSlice(Answer):
    """What was read of a source: from ``start`` up to ``end``; ``detail`` has files or offsets."""

    start: dict[str, Any]
    end: dict[str, Any]
    rows: int | None = None
    detail: dict[str, Any] = Field(default_factory=dict)
    epochs: int = 1


class Blame(Answer):
    """The last change of a key before snapshot ``(branch, epoch)``, and what its epoch was made by and of."""

    table: str
    key: dict[str, Any]
    branch: str
    epoch: int
    change: KeyChange
    artifact: str
    filename: str | None = None
    version: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    changes: tuple[LineageChange, ...] = ()
    slices: dict[str, SourceSlice] = Field(default_factory=dict)


class DiffSide(Answer):
    """One of two snapshots that are compared."""

    application: str
    branch: str
    epoch: int
    committed_at: datetime | None = None
    version: int | None = None
    artifact: str
    filename: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    parallelism: int | None = None


class ParameterDiff(Answer):
    name: str
    source: Any = Field(default=None, alias="from")
    target: Any = Field(default=None, alias="to")


class TableDiff(Answer):
    """Keys that only the later snapshot has, both with other values, or only the earlier one. ``note``: see there."""

    table: str
    added: int | None = None
    changed: int | None = None
    deleted: int | None = None
    expired: int | None = None
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    note: str | None = None


class DatedChange(Answer):
    branch: str
    epoch: int
    change: LineageChange


class DiffPath(Answer):
    """What was done on one side since the common ancestor."""

    epochs: int
    slices: dict[str, SourceSlice] = Field(default_factory=dict)
    changes: tuple[DatedChange, ...] = ()


class DiffPaths(Answer):
    source: DiffPath = Field(alias="from")
    target: DiffPath = Field(alias="to")


class SnapshotDiff(Answer):
    """The difference of two snapshots. ``between`` is ``None`` where the epochs between are not known any more."""

    source: DiffSide = Field(alias="from")
    target: DiffSide = Field(alias="to")
    ancestor: EpochKey | None = None
    between: DiffPaths | None = None
    code: str
    parameters: tuple[ParameterDiff, ...] = ()
    tables: tuple[TableDiff, ...] = ()


class DiffRow(Answer):
    kind: Literal["added", "changed", "deleted", "expired"]
    key: dict[str, Any]
    old: dict[str, Any] | None = None
    new: dict[str, Any] | None = None
