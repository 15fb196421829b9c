"""Slices of file sources: the files already taken and the files to take next, for any file system.

A slice lists files with size and modification time; a position is the number of files taken. A file that is missing
after it was listed and before an epoch has read it fails the attempt (``missing="fail"``), or is recorded as skipped in
the next slice (``"skip"``). Listings are not kept across attempts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal

from epochal.connectors.file_listing import FileRecord
from epochal.contracts.source import Slice
from epochal.errors import FilesMissing, OptionError, SliceOutdated, SourceChanged, SourceError
from epochal.pipeline.definitions import check_choice, check_flag, check_positive

Missing = Literal["fail", "skip"]

MISSING: tuple[Missing, ...] = ("fail", "skip")
_log = logging.getLogger(__name__)


class TakenFiles:
    """The files of all accepted slices, as recorded in the slices."""

    def __init__(self, missing: Missing = "fail") -> None:
        self._missing = missing
        self._taken: dict[str, FileRecord] = {}
        self._listed: dict[str, FileRecord] = {}
        self._gone: dict[str, FileRecord] = {}
        self._available: frozenset[str] | None = None
        self.ended = False
        """True once all files passed to :meth:`limit_to` are taken."""
        self.left: int | None = None
        """Number of new files in the last listing that are not taken yet."""
        self.skipped = 0
        """Number of files that the accepted slices record as missing."""

    @property
    def begun(self) -> bool:
        """True once a slice has been accepted."""
        return bool(self._taken or self.skipped)

    def has_taken(self, path: str) -> bool:
        return path in self._taken

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        records = [FileRecord.from_json(record) for record in (checkpoint or {}).get("files", ())]
        self._taken = {record.path: record for record in records}
        self.skipped = int((checkpoint or {}).get("skipped", 0))
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        skipped = {"skipped": self.skipped} if self.skipped else {}
        return {"files": [record.as_json() for record in self._taken.values()], **skipped}

    def accept(self, slice: Slice) -> None:
        records = records_of(slice)
        for record in records:
            self._taken[record.path] = record
            self._listed.pop(record.path, None)
        for path in skipped_in(slice):
            self._gone.pop(path, None)
            self.skipped += 1
        if self.left is not None:
            self.left = max(0, self.left - len(records))

    def limit_to(self, there: Iterable[FileRecord]) -> None:
        """Restrict this source to these files."""
        self._listed = {record.path: record for record in there if record.path not in self._taken}
        self._available = frozenset(self._listed)

    def new_among(self, there: Iterable[FileRecord]) -> list[FileRecord]:
        """The files that are not taken yet, in order.

        Raises ``SourceChanged`` for a taken file that has changed, and ``FilesMissing`` for a file that an earlier call
        found and this call does not.
        """
        new: list[FileRecord] = []
        for record in sorted(there):
            taken = self._taken.get(record.path)
            if taken is None:
                new.append(record)
            elif taken != record:
                raise changed_after_commit(taken, record)
        if self._available is not None:
            new = [record for record in new if record.path in self._available]
        self._note_missing({record.path: record for record in new})
        self.ended = self._available is not None and not new and not self._gone
        self.left = len(new)
        return new

    def _note_missing(self, listed: dict[str, FileRecord]) -> None:
        gone = {path: record for path, record in self._listed.items() if path not in listed}
        self._listed = listed
        if gone and self._missing == "fail":
            self._listed = {**gone, **listed}
            raise self.missing(list(gone.values()))
        if gone:
            _log.warning("Skipped %s: missing before an epoch has read it (missing='skip').", _named(list(gone)))
        self._gone = {path: record for path, record in {**self._gone, **gone}.items() if path not in listed}

    def missing(self, records: Sequence[FileRecord]) -> SourceError:
        """The error for one or more missing files.

        Files of a slice that was already accepted, or planned by another process (as in a trial), cannot be skipped.
        """
        known = [record for record in records if record.path in self._listed]
        if not known:
            return changed(records[0], None)
        named = _named([record.path for record in records])
        if self._missing == "skip":
            return SliceOutdated(f"{named}: missing since the epoch's slice was planned. The next epoch skips it.")
        return FilesMissing(
            f"{named}: listed by the source, and missing before an epoch has read it. Restore it with its "
            "modification time, and start again; or set missing='skip', which records the file as skipped."
        )

    def next_slice(self, chosen: Sequence[FileRecord], rows: int | None, punctuated: bool) -> Slice | None:
        """:meth:`slice_of`; ``None`` without files to take or to record as skipped.

        With punctuation, slices of several sources belong together, so skipped files are recorded only together with
        the next files.
        """
        return self.slice_of(chosen, rows) if chosen or (self._gone and not punctuated) else None

    def up_to_punctuation(self, new: Sequence[FileRecord], pattern: str, bounded: bool) -> list[FileRecord]:
        """The next files up to the first whose name matches ``pattern``; empty if there is no match.

        Without a match, a bounded source takes all remaining files. A run limited to the available files leaves them
        for the next run.
        """
        for position, record in enumerate(new):
            if fnmatchcase(record.path.rpartition("/")[2], pattern):
                return list(new[: position + 1])
        if bounded and self._available is not None:
            return list(new)
        self.ended = self._available is not None
        return []

    def slice_of(self, chosen: Sequence[FileRecord], rows: int | None) -> Slice:
        """The next slice, with these files and the files to skip. ``rows``: number of rows, if known."""
        gone = {"missing": [record.as_json() for record in self._gone.values()]} if self._gone else {}
        return Slice(
            start={"files": len(self._taken)},
            end={"files": len(self._taken) + len(chosen)},
            detail={"files": [record.as_json() for record in chosen], **gone},
            rows=rows,
        )


def records_of(slice: Slice) -> list[FileRecord]:
    """The files of a slice."""
    return [FileRecord.from_json(record) for record in slice.detail["files"]]


def skipped_in(slice: Slice) -> list[str]:
    """The paths of the files that a slice records as missing."""
    return [str(record["path"]) for record in slice.detail.get("missing", ())]


def first_within(
    limit: int | None, new: Sequence[FileRecord], rows_of: Callable[[FileRecord], int]
) -> tuple[list[FileRecord], int]:
    """The longest prefix of the files with at most ``limit`` rows (at least one file), and its number of rows."""
    chosen: list[FileRecord] = []
    total = 0
    for record in new:
        rows = rows_of(record)
        if chosen and limit is not None and total + rows > limit:
            break
        chosen.append(record)
        total += rows
    return chosen, total


def check_punctuation(what: str, punctuation: str | None, max_files: int | None) -> None:
    """Raise ``OptionError`` for a pattern that cannot match a file name, or that is combined with ``max_files``."""
    if punctuation is None:
        return
    if not punctuation or "/" in punctuation or punctuation[0] in "_.":
        raise OptionError(
            f"{what}: punctuation is {punctuation!r}; it must be a pattern of file names, such as '*.end'. Names that "
            "begin with _ or . are ignored."
        )
    if max_files is not None:
        raise OptionError(f"{what}: max_files and punctuation exclude each other. Remove one of them.")


@dataclass(frozen=True)
class Taking:
    """Options that select the files of an epoch, in addition to the engine's limits."""

    max_files: int | None = None
    bounded: bool = False
    punctuation: str | None = None
    missing: Missing = "fail"

    @classmethod
    def checked(
        cls, what: str, max_files: int | None, bounded: bool, punctuation: str | None, missing: Missing
    ) -> Taking:
        """Check the options of ``what`` (such as ``files.source``). Raises ``OptionError``."""
        check_positive(what, "max_files", max_files, whole=True)
        check_flag(what, "bounded", bounded)
        check_punctuation(what, punctuation, max_files)
        check_choice(what, "missing", missing, MISSING)
        return cls(max_files, bounded, punctuation, missing)

    @property
    def described(self) -> dict[str, Any]:
        """The options that are set, for the source's description."""
        limits = {"max_files": self.max_files, "bounded": self.bounded, "punctuation": self.punctuation}
        skip = {"missing": self.missing} if self.missing == "skip" else {}
        return {**{name: limit for name, limit in limits.items() if limit}, **skip}


def changed(recorded: FileRecord, now: FileRecord | None) -> SourceChanged:
    """The error for a file that differs from its record in a slice. ``now`` is ``None`` for a missing file."""
    return SourceChanged(f"{recorded.path} {_what(recorded, now)} since its slice was recorded. {_remedy(recorded)}")


def changed_after_commit(committed: FileRecord, now: FileRecord) -> SourceChanged:
    """The error for a file that has changed since an epoch committed its rows."""
    return SourceChanged(
        f"{committed.path} {_what(committed, now)} since an epoch committed its rows: state and sinks contain its "
        f"earlier content. {_remedy(committed)} To read its current content, start with empty state: a new "
        "application, or another --directory of `epochal run`."
    )


def _named(paths: Sequence[str]) -> str:
    others = f" and {len(paths) - 1} other files" if len(paths) > 2 else " and another file" if len(paths) == 2 else ""
    return f"{min(paths)}{others}"


def _what(recorded: FileRecord, now: FileRecord | None) -> str:
    if now is None:
        return "is missing"
    times = f"it was modified at {_time(now)}, and had been at {_time(recorded)}"
    if now.size != recorded.size:
        return f"has {now.size} bytes instead of {recorded.size} ({times})"
    return f"was rewritten with the same size ({times}),"


def _remedy(recorded: FileRecord) -> str:
    return f"Write new data to a new file. Restore this file with its modification time (touch -d '{_time(recorded)}')."


def _time(record: FileRecord) -> str:
    """The modification time in the precision of the comparison and the format of ``touch``."""
    seconds, nanoseconds = divmod(record.modified_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{nanoseconds:09} UTC"
