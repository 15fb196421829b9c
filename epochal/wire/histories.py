"""Answers about the past of keys: scans, histories, blame."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from epochal.contracts.catalog import Change
from epochal.contracts.configuration import Parameters
from epochal.contracts.identity import EpochKey
from epochal.contracts.source import Slice
from epochal.wire.bodies import Answer, Open
from epochal.wire.reading import Isolation
from epochal.wire.state import Since


class ScannedRow(Answer):
    """``key``: all key columns, also a map's or list's own."""

    key: dict[str, Any]
    value: dict[str, Any]


class Scan(Answer):
    """Rows in key order. All pages are of the epoch of the first."""

    table: str
    branch: str
    epoch: int
    isolation: Open[Isolation]
    items: list[ScannedRow]
    next_cursor: str | None
    since: Since = None
    note: str | None = Field(
        default=None,
        description="What the rows are where they do not stand for themselves: panes of windows that overlap.",
    )


class HistoryItem(Answer):
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
    items: list[HistoryItem]
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
    change: HistoryItem
    artifact: str
    filename: str | None
    version: int | None
    parameters: Parameters
    changes: list[Change]
    slices: dict[str, SourceSlice]
