"""Which files a source has taken, and which come next: what all sources of files have in common, wherever these lie.

Slices are lists of files, each with size and modification time; positions count the files taken so far. A file that was
listed and is missing before an epoch has read it fails the attempt (``missing="fail"``), or is recorded in the next
slice as skipped (``"skip"``). What was listed is known to one attempt only.
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
    """The files of all slices that were accepted, as they were then."""

    def __init__(self, missing: Missing = "fail") -> None:
        self._missing = missing
        self._taken: dict[str, FileRecord] = {}
        self._listed: dict[str, FileRecord] = {}
        self._gone: dict[str, FileRecord] = {}
        self._available: frozenset[str] | None = None
        self.ended = False
        """None of the files that :meth:`limit_to` named are left to take."""
        self.left: int | None = None
        """Files that were new when it was last looked, and are not taken yet."""
        self.skipped = 0
        """Files that all accepted slices record as missing."""

    @property
    def begun(self) -> bool:
        """Whether a slice has been accepted."""
        return bool(self._taken or self.skipped)

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
        """Take no others from now on."""
        self._listed = {record.path: record for record in there if record.path not in self._taken}
        self._available = frozenset(self._listed)

    def new_among(self, there: Iterable[FileRecord]) -> list[FileRecord]:
        """Those that were not taken yet, in order. Raises ``SourceChanged`` for one that was, and is another now;
        ``FilesMissing`` for one that an earlier call has found and this one does not."""
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
        """The error for files that are missing, at least one. Of a slice that was planned elsewhere, as a trial reads
        it, or accepted, nothing can be skipped."""
        known = [record for record in records if record.path in self._listed]
        if not known:
            return changed(records[0], None)
        named = _named([record.path for record in records])
        if self._missing == "skip":
            return SliceOutdated(f"{named}: missing since the epoch's slice was planned. The next epoch skips it.")
        return FilesMissing(
            f"{named}: listed by the source, and missing before an epoch has read it. Put it back with its "
            "modification time, and start again; or declare missing='skip', with which the epoch's slice records the "
            "file as skipped."
        )

    def next_slice(self, chosen: Sequence[FileRecord], rows: int | None, punctuated: bool) -> Slice | None:
        """:meth:`slice_of`, ``None`` if there is nothing to take and nothing to record as skipped.

        With punctuation, sources are read slice by slice together: a file is then recorded with the next files only.
        """
        return self.slice_of(chosen, rows) if chosen or (self._gone and not punctuated) else None

    def up_to_punctuation(self, new: Sequence[FileRecord], pattern: str, bounded: bool) -> list[FileRecord]:
        """The next files up to the first whose name fits ``pattern``; none while it has not come.

        Of a bounded source the rest; where only what is available is taken, the rest is left for the next time.
        """
        for position, record in enumerate(new):
            if fnmatchcase(record.path.rpartition("/")[2], pattern):
                return list(new[: position + 1])
        if bounded and self._available is not None:
            return list(new)
        self.ended = self._available is not None
        return []

    def slice_of(self, chosen: Sequence[FileRecord], rows: int | None) -> Slice:
        """The next slice: exactly these files, and those to skip. ``rows`` where they are known."""
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
    """The first files that together have at most ``limit`` rows, at least one file; and how many rows they have."""
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
    """Raises ``OptionError`` for a pattern that fits no file's name, or beside what cuts slices elsewhere."""
    if punctuation is None:
        return
    if not punctuation or "/" in punctuation or punctuation[0] in "_.":
        raise OptionError(
            f"{what}: punctuation is {punctuation!r}; it is a pattern of file names, such as '*.end'. Names that begin "
            "with _ or . are not looked at."
        )
    if max_files is not None:
        raise OptionError(f"{what}: max_files cuts epochs elsewhere than punctuation. Leave one of them out.")


@dataclass(frozen=True)
class Taking:
    """Which files a source takes for an epoch, beside the engine's own limits."""

    max_files: int | None = None
    bounded: bool = False
    punctuation: str | None = None
    missing: Missing = "fail"

    @classmethod
    def checked(
        cls, what: str, max_files: int | None, bounded: bool, punctuation: str | None, missing: Missing
    ) -> Taking:
        """Raises ``OptionError``, naming ``what`` (``files.source``)."""
        check_positive(what, "max_files", max_files, whole=True)
        check_flag(what, "bounded", bounded)
        check_punctuation(what, punctuation, max_files)
        check_choice(what, "missing", missing, MISSING)
        return cls(max_files, bounded, punctuation, missing)

    @property
    def described(self) -> dict[str, Any]:
        """JSON for people, without what is not limited."""
        limits = {"max_files": self.max_files, "bounded": self.bounded, "punctuation": self.punctuation}
        skip = {"missing": self.missing} if self.missing == "skip" else {}
        return {**{name: limit for name, limit in limits.items() if limit}, **skip}


def changed(recorded: FileRecord, now: FileRecord | None) -> SourceChanged:
    """The error for a file that is not what its slice says. ``now`` ``None``: it is gone."""
    return SourceChanged(f"{recorded.path} {_what(recorded, now)} since its slice was recorded. {_remedy(recorded)}")


def changed_after_commit(committed: FileRecord, now: FileRecord) -> SourceChanged:
    """The error for a file that is not what it was when an epoch committed its rows."""
    return SourceChanged(
        f"{committed.path} {_what(committed, now)} since an epoch committed its rows: state and sinks have what it "
        f"held then. {_remedy(committed)} To read it as it is now, begin anew: a new application, or "
        "another --directory of `epochal run`."
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
    return f"was written again, with as many bytes ({times}),"


def _remedy(recorded: FileRecord) -> str:
    return (
        "New data belongs in a new file: put this one back as it was, also its modification time "
        f"(touch -d '{_time(recorded)}')."
    )


def _time(record: FileRecord) -> str:
    """As exactly as it is compared, and as ``touch`` reads it."""
    seconds, nanoseconds = divmod(record.modified_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{nanoseconds:09} UTC"
