"""Which files a source has taken, and which come next: what all sources of files have in common, wherever these lie.

Slices are lists of files, each with size and modification time; positions count the files taken so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from epochal.connectors.file_listing import FileRecord
from epochal.contracts.source import Slice
from epochal.errors import OptionError, SourceChanged


class TakenFiles:
    """The files of all slices that were accepted, as they were then."""

    def __init__(self) -> None:
        self._taken: dict[str, FileRecord] = {}
        self._available: frozenset[str] | None = None
        self.ended = False
        """None of the files that :meth:`limit_to` named are left to take."""
        self.left: int | None = None
        """Files that were new when it was last looked, and are not taken yet."""

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        records = [FileRecord.from_json(record) for record in (checkpoint or {}).get("files", ())]
        self._taken = {record.path: record for record in records}
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        return {"files": [record.as_json() for record in self._taken.values()]}

    def accept(self, slice: Slice) -> None:
        records = records_of(slice)
        for record in records:
            self._taken[record.path] = record
        if self.left is not None:
            self.left = max(0, self.left - len(records))

    def limit_to(self, there: Iterable[FileRecord]) -> None:
        """Take no others from now on."""
        self._available = frozenset(record.path for record in there)

    def new_among(self, there: Iterable[FileRecord]) -> list[FileRecord]:
        """Those that were not taken yet, in order. Raises ``SourceChanged`` for one that was, and is another now."""
        new: list[FileRecord] = []
        for record in sorted(there):
            taken = self._taken.get(record.path)
            if taken is None:
                new.append(record)
            elif taken != record:
                raise changed_after_commit(taken, record)
        if self._available is not None:
            new = [record for record in new if record.path in self._available]
            self.ended = not new
        self.left = len(new)
        return new

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
        """The next slice: exactly these files. ``rows`` where they are known."""
        return Slice(
            start={"files": len(self._taken)},
            end={"files": len(self._taken) + len(chosen)},
            detail={"files": [record.as_json() for record in chosen]},
            rows=rows,
        )


def records_of(slice: Slice) -> list[FileRecord]:
    """The files of a slice."""
    return [FileRecord.from_json(record) for record in slice.detail["files"]]


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


def described_limits(max_files: int | None, bounded: bool, punctuation: str | None = None) -> dict[str, Any]:
    """What a source of files says of how much it takes; nothing where that is not limited."""
    limits: dict[str, Any] = {"max_files": max_files, "bounded": bounded, "punctuation": punctuation}
    return {name: limit for name, limit in limits.items() if limit}


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
