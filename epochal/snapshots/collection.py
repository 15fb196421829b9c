"""Plan of a garbage collection: files to delete, with reasons, from the catalog's facts and a listing of the store.

Pure: this module reads and deletes no files. A file may be deleted if no readable snapshot needs it and no process can
still name it:

- it is not among the files that retained snapshots need, nor of snapshots that were readable until recently;
- its epoch is decided and committed in all sinks;
- it is not a base that a running driver may name;
- it is older than the grace period.

The listing must be older than the catalog's facts: then all later names are known, and later files are not listed. A
file that may be deleted never becomes needed again, so that collections can be interrupted, repeated, and run
concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.store import StoredFile


class Why(StrEnum):
    """Reason to delete a file."""

    EXPIRED = "of an expired snapshot"
    LOST = "of an attempt that was lost"
    UNNAMED_BASE = "a base that no snapshot names"
    LOG = "a write-ahead log that was applied"
    UNFINISHED = "never finished"
    SCRATCH = "of a trial"
    FOREIGN = "foreign, asked for"


class WhyNot(StrEnum):
    """Reason to keep a file that no retained snapshot needs."""

    YOUNG = "younger than the grace period"
    UNDECIDED = "of an epoch under way"
    PENDING_BASE = "a base that a driver may be about to name"
    JUST_EXPIRED = "of a snapshot that expired within the grace period"
    IN_USE = "of a branch that an operation works on"
    UNKNOWN = "of a branch whose snapshots cannot all be read"
    FOREIGN = "foreign: no part of this catalog"


@dataclass(frozen=True)
class BranchFacts:
    """A branch of the catalog. ``decided``: prepared and committed epochs that were not collected."""

    decided: Collection[int] = ()
    open: Collection[int] = ()
    """Started epochs, and prepared ones with uncommitted sinks; empty for a deleted application."""
    owned: bool = False
    """True if a driver may write to the branch."""
    bases_at: int = -1
    """Epoch of the latest bases that a snapshot of this branch names."""


@dataclass(frozen=True)
class StoreFacts:
    """A catalog's facts about a store. ``branches``: all branches, by id."""

    branches: Mapping[str, BranchFacts]
    needed: Collection[str]
    """Paths that retained snapshots need."""
    just_expired: Collection[str] = frozenset()
    """Paths that snapshots need that were marked as collected within the grace period, and may still be read."""
    in_use: Collection[str] = frozenset()
    """Branches in use by a running operation."""
    unknown: Collection[str] = frozenset()
    """Branches with an unreadable retained snapshot, whose needed files are unknown."""
    asked_for: Collection[str] = frozenset()
    """Foreign folders whose deletion was requested."""
    named: Collection[str] = frozenset()
    """Paths in the folders :data:`layout.OF_THE_CATALOG` that the catalog names."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A file to delete."""

    path: str
    bytes: int
    why: Why


@dataclass(frozen=True, slots=True)
class Amount:
    files: int = 0
    bytes: int = 0

    def plus(self, bytes: int) -> Amount:
        return Amount(self.files + 1, self.bytes + bytes)


@dataclass(frozen=True)
class WaitingLimit:
    """Size above which the files that only wait for the end of the grace period make it shorter: ``share`` times the
    size of the needed files, but at least ``bytes``. ``least``: the grace period is never shorter."""

    share: float
    bytes: int = 1 << 30
    least: timedelta = timedelta(minutes=10)

    def plan(self, grace: timedelta, planned: Callable[[timedelta], CollectionPlan]) -> CollectionPlan:
        """The result of ``planned`` for the longest grace period that the limit allows: ``grace``, or half of it, or
        half of that, down to ``least``, which the limit need not allow."""
        found = planned(grace)
        while grace > self.least and not self.allows(found.waiting, found.needed.bytes):
            grace = max(grace / 2, self.least)
            found = planned(grace)
        return found

    def allows(self, waiting: int, needed: int) -> bool:
        """``waiting``, ``needed``: sizes in bytes."""
        return waiting <= max(self.bytes, self.share * needed)


@dataclass(frozen=True)
class CollectionPlan:
    """Result of planning. ``snapshots``: to be marked as collected first; their files are deleted after the grace
    period ``grace``."""

    grace: timedelta
    snapshots: tuple[EpochKey, ...]
    files: tuple[Doomed, ...]
    needed: Amount
    spared: Mapping[WhyNot, Amount]
    foreign: Mapping[str, Amount]
    """Folders of the store that are unknown to this catalog."""
    problems: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def waiting(self) -> int:
        """Size in bytes of the files that only wait for the end of the grace period."""
        return sum(self.spared.get(reason, Amount()).bytes for reason in (WhyNot.YOUNG, WhyNot.JUST_EXPIRED))


def plan(
    facts: StoreFacts,
    files: Sequence[StoredFile],
    now: datetime,
    grace: timedelta,
    snapshots: Sequence[EpochKey] = (),
    problems: Sequence[str] = (),
) -> CollectionPlan:
    """Plan which of ``files`` to delete."""
    counted = _Counted()
    oldest = now - grace
    scratch = _scratch(facts, files, oldest)
    for file in files:
        folder = file.path.partition("/")[0]
        verdict = _judge(facts, file, folder, oldest, folder in scratch)
        counted.add(file, folder, verdict)
    return CollectionPlan(
        grace=grace,
        snapshots=tuple(snapshots),
        files=tuple(counted.doomed),
        needed=counted.needed,
        spared=counted.spared,
        foreign=counted.foreign,
        problems=tuple(problems),
    )


def _judge(facts: StoreFacts, file: StoredFile, folder: str, oldest: datetime, scratch: bool) -> Why | WhyNot | None:
    """Reason to delete or keep a file; ``None``: a retained snapshot needs it."""
    if file.path in facts.needed:
        return None
    branch = facts.branches.get(folder)
    if branch is None and folder in layout.OF_THE_CATALOG:
        return _judge_named(facts, file, folder, oldest)
    place = layout.place_of(file.path)
    if branch is None:
        if scratch:
            return Why.SCRATCH
        if place is None or folder not in facts.asked_for:
            return WhyNot.FOREIGN
        return Why.FOREIGN if _is_old(file, oldest) else WhyNot.YOUNG
    if place is None:
        return WhyNot.FOREIGN
    return _hindrance(facts, file, place, branch, oldest) or _reason(place, branch)


def _judge_named(facts: StoreFacts, file: StoredFile, folder: str, oldest: datetime) -> Why | WhyNot | None:
    """Judge a file in a folder of the catalog, which names its files before they are written and until they are
    deleted."""
    if layout.finished(file.path) in facts.named:
        return None
    if folder not in facts.asked_for:
        return WhyNot.FOREIGN
    return Why.FOREIGN if _is_old(file, oldest) else WhyNot.YOUNG


def _hindrance(
    facts: StoreFacts, file: StoredFile, place: layout.Place, branch: BranchFacts, oldest: datetime
) -> WhyNot | None:
    if place.branch in facts.unknown:
        return WhyNot.UNKNOWN
    if place.branch in facts.in_use:
        return WhyNot.IN_USE
    if place.kind != "base" and place.epoch in branch.open:
        return WhyNot.UNDECIDED
    if place.kind == "base" and branch.owned and place.epoch > branch.bases_at:
        return WhyNot.PENDING_BASE
    if file.path in facts.just_expired:
        return WhyNot.JUST_EXPIRED
    return None if _is_old(file, oldest) else WhyNot.YOUNG


def _reason(place: layout.Place, branch: BranchFacts) -> Why:
    if not place.finished:
        return Why.UNFINISHED
    if place.kind == "log":
        return Why.LOG
    if place.kind == "base":
        return Why.UNNAMED_BASE
    return Why.EXPIRED if place.epoch in branch.decided else Why.LOST


def _is_old(file: StoredFile, oldest: datetime) -> bool:
    return file.written_at is not None and file.written_at <= oldest


def _scratch(facts: StoreFacts, files: Sequence[StoredFile], oldest: datetime) -> set[str]:
    """Folders of ended trials, without writes within the grace period."""
    ages: dict[str, bool] = {}
    for file in files:
        folder = file.path.partition("/")[0]
        if layout.is_scratch(folder) and folder not in facts.branches:
            ages[folder] = ages.get(folder, True) and _is_old(file, oldest) and layout.place_of(file.path) is not None
    return {folder for folder, old in ages.items() if old}


@dataclass
class _Counted:
    doomed: list[Doomed] = field(default_factory=list)
    needed: Amount = Amount()
    spared: dict[WhyNot, Amount] = field(default_factory=dict)
    foreign: dict[str, Amount] = field(default_factory=dict)

    def add(self, file: StoredFile, folder: str, verdict: Why | WhyNot | None) -> None:
        if verdict is None:
            self.needed = self.needed.plus(file.bytes)
        elif isinstance(verdict, Why):
            self.doomed.append(Doomed(file.path, file.bytes, verdict))
        else:
            self.spared[verdict] = self.spared.get(verdict, Amount()).plus(file.bytes)
            if verdict is WhyNot.FOREIGN:
                self.foreign[folder] = self.foreign.get(folder, Amount()).plus(file.bytes)
