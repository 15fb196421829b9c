"""History of keys, blame, and differences between snapshots."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from epochal.contracts.catalog import Change
from epochal.contracts.configuration import Parameters
from epochal.contracts.identity import EpochKey
from epochal.contracts.source import Slice
from epochal.wire.bodies import Answer, Open
from epochal.wire.state import Since


class KeyChangeAnswer(Answer):
    """A change of one full key. ``old``, ``new``: null if there was no row. ``at``: commit time of the epoch, or
    creation time of a prepared one. ``expired``: the row expired by its time to live. ``since``: describes the columns
    of ``new`` at the epoch of the change."""

    branch: str
    epoch: int
    application: str
    at: datetime
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None
    expired: bool
    since: Since = None


class KeyHistory(Answer):
    """Changes before snapshot ``(branch, epoch)``, newest first. A page may be short without being the last one.

    ``known_since``: set on the last page if older changes have expired.
    """

    table: str
    key: dict[str, Any]
    branch: str
    epoch: int
    items: list[KeyChangeAnswer]
    next_cursor: str | None
    known_since: EpochKey | None
    note: str | None = Field(
        default=None,
        description="Meaning of the rows, if they are panes of overlapping windows.",
    )


class SourceSlice(Answer):
    """Input of an epoch from one source: from ``start`` to ``end``; ``detail`` lists the files or offsets."""

    start: dict[str, Any]
    end: dict[str, Any]
    rows: int | None
    detail: dict[str, Any]

    @classmethod
    def of(cls, slice: Slice) -> SourceSlice:
        return cls(start=slice.start, end=slice.end, rows=slice.rows, detail=slice.detail)


class Blame(Answer):
    """The last change of a key before snapshot ``(branch, epoch)``, and the code and input of its epoch.

    ``artifact``: SHA-256 of the code; ``filename``: its name; ``version``: number of the version of the application.
    """

    table: str
    key: dict[str, Any]
    branch: str
    epoch: int
    change: KeyChangeAnswer
    artifact: str
    filename: str | None
    version: int | None
    parameters: Parameters
    changes: list[Change]
    slices: dict[str, SourceSlice]


class _FromTo(Answer):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)


class DiffSide(Answer):
    """One of two compared snapshots. ``artifact``: SHA-256 of its code; ``version``: number of its version."""

    application: str
    branch: str
    epoch: int
    committed_at: datetime | None
    version: int | None
    artifact: str
    filename: str | None
    parameters: Parameters
    parallelism: int
    parallelisms: dict[str, int] = Field(
        default_factory=dict, description="Subtasks of the operators that have another number than `parallelism`."
    )


class ParameterDiff(_FromTo):
    """A differing parameter; null if it is not set."""

    name: str
    source: Any = Field(alias="from")
    target: Any = Field(alias="to")


class TableDiff(Answer):
    """Differing keys of a state table: ``added`` and ``changed`` ones, and removed ones, which were ``deleted`` or have
    ``expired``.

    ``compared``: value columns of both snapshots; ``not_compared``: value columns of only one. ``since`` describes the
    second snapshot. Counts are null if rows cannot be compared; ``note`` explains why.
    """

    table: str
    added: int | None
    changed: int | None
    deleted: int | None
    expired: int | None
    compared: list[str]
    not_compared: list[str]
    since: Since = None
    note: str | None


class SourceRange(Answer):
    """Input read from a source by a number of epochs: from ``start`` to ``end``."""

    start: dict[str, Any]
    end: dict[str, Any]
    rows: int | None
    epochs: int


class DatedChange(Answer):
    """A reconfiguration and the epoch with which it took effect."""

    branch: str
    epoch: int
    change: Change


class DiffPath(Answer):
    """Epochs, input and changes since the common ancestor."""

    epochs: int
    slices: dict[str, SourceRange]
    changes: list[DatedChange]


class DiffPaths(_FromTo):
    """Paths from the common ancestor. ``from`` has epochs only if the branches differ, or ``to`` is the older
    snapshot."""

    source: DiffPath = Field(alias="from")
    target: DiffPath = Field(alias="to")


class SnapshotDiff(_FromTo):
    """Differences between two snapshots. ``between`` is null if the epochs between them have expired or are too many;
    whole states were then compared. ``code``: whether both have the same code."""

    source: DiffSide = Field(alias="from")
    target: DiffSide = Field(alias="to")
    ancestor: EpochKey | None
    between: DiffPaths | None
    code: Open[Literal["same", "different"]]
    parameters: list[ParameterDiff]
    tables: list[TableDiff]


class DiffRow(Answer):
    """A differing row. ``old`` and ``new``: values in the two snapshots; null if there is no row."""

    kind: Open[Literal["added", "changed", "deleted", "expired"]]
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class DiffRows(_FromTo):
    """Differing rows of one state table in key order. ``since`` describes the second snapshot."""

    table: str
    source: EpochKey = Field(alias="from")
    target: EpochKey = Field(alias="to")
    compared: list[str]
    items: list[DiffRow]
    next_cursor: str | None
    since: Since = None
    note: str | None = Field(
        default=None,
        description="Meaning of the rows, if they are panes of overlapping windows.",
    )
