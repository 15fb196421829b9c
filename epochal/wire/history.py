"""Answers about the past of keys: scans, histories, blame."""

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
    """One change of one full key. ``old``, ``new``: null where there was no row. ``at``: when the epoch was committed;
    of one that is only prepared, when it was made. ``expired``: the row was not deleted; its time to live is over.
    ``since``: of the columns of ``new``, as the epoch of the change has them."""

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
    """Changes, newest first, from snapshot ``(branch, epoch)`` back. A page may be short, and not the last.

    ``known_since``: not null on the last page when the history goes back further, but has expired.
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
        description="What the rows are where they do not stand for themselves: panes of windows that overlap.",
    )


class SourceSlice(Answer):
    """What the epoch read of one source: from ``start`` up to ``end``; ``detail`` has the files or offsets."""

    start: dict[str, Any]
    end: dict[str, Any]
    rows: int | None
    detail: dict[str, Any]

    @classmethod
    def of(cls, slice: Slice) -> SourceSlice:
        return cls(start=slice.start, end=slice.end, rows=slice.rows, detail=slice.detail)


class Blame(Answer):
    """``change`` is the last one before snapshot ``(branch, epoch)``; the rest says what its epoch was made by and of.

    ``artifact`` is the sha256 of the code, ``filename`` its name, ``version`` the number within the application.
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
    """One of the two snapshots. ``artifact`` is the sha256 of its code, ``version`` the application's number for it."""

    application: str
    branch: str
    epoch: int
    committed_at: datetime | None
    version: int | None
    artifact: str
    filename: str | None
    parameters: Parameters
    parallelism: int


class ParameterDiff(_FromTo):
    """A parameter that is different; null where it is not set."""

    name: str
    source: Any = Field(alias="from")
    target: Any = Field(alias="to")


class TableDiff(Answer):
    """Keys of a state table that are there only after (``added``), only before (``deleted``; ``expired`` where nobody
    deleted them, but their time is over), or with other values.

    ``compared``: the value columns that both snapshots have; ``not_compared``: those that only one has. ``note`` says
    what else there is to know, ``since`` is that of the second snapshot. The counts are null where the rows cannot be
    compared.
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
    """What was read of a source, by so many epochs: from ``start`` up to ``end``."""

    start: dict[str, Any]
    end: dict[str, Any]
    rows: int | None
    epochs: int


class DatedChange(Answer):
    """A reconfiguration, and the epoch it took effect with."""

    branch: str
    epoch: int
    change: Change


class DiffPath(Answer):
    """What was done since the common ancestor."""

    epochs: int
    slices: dict[str, SourceRange]
    changes: list[DatedChange]


class DiffPaths(_FromTo):
    """``from`` has epochs only where the two snapshots lie on different branches, or ``to`` is the older one."""

    source: DiffPath = Field(alias="from")
    target: DiffPath = Field(alias="to")


class SnapshotDiff(_FromTo):
    """From one snapshot to another. ``between`` is null where the epochs between have expired, or are very many: then
    whole states were compared. ``code``: whether both were made by the same code."""

    source: DiffSide = Field(alias="from")
    target: DiffSide = Field(alias="to")
    ancestor: EpochKey | None
    between: DiffPaths | None
    code: Open[Literal["same", "different"]]
    parameters: list[ParameterDiff]
    tables: list[TableDiff]


class DiffRow(Answer):
    """``old`` and ``new`` have the value columns of their snapshots; null where there is no row."""

    kind: Open[Literal["added", "changed", "deleted", "expired"]]
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class DiffRows(_FromTo):
    """Rows of one state table that are different, in key order. ``since``: of the second snapshot."""

    table: str
    source: EpochKey = Field(alias="from")
    target: EpochKey = Field(alias="to")
    compared: list[str]
    items: list[DiffRow]
    next_cursor: str | None
    since: Since = None
    note: str | None = Field(
        default=None,
        description="What the rows are where they do not stand for themselves: panes of windows that overlap.",
    )
