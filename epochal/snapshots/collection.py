"""Garbage collection, planned: from what a catalog knows and what lies in the store, what can go, and why.

Pure: nothing is read and nothing deleted here. A file may go when nothing that anybody may still read, or go on from,
needs it, and nobody can still be about to name it:

- it is not among the files that retained snapshots need, nor those of snapshots that were readable a moment ago;
- it was not written for an epoch that is still undecided, nor is its epoch's commit still to be finished;
- it is no base that a running driver may be about to name;
- it is older than the grace period.

The listing has to be older than the catalog's answers: then what was named since is known, and what was written since
is not listed. What may go once may go for ever, so that a collection can be cut short and repeated, also by two at
once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.store import StoredFile


class Why(StrEnum):
    """Why a file goes."""

    EXPIRED = "of an expired snapshot"
    LOST = "of an attempt that was lost"
    UNNAMED_BASE = "a base that no snapshot names"
    LOG = "a write-ahead log that was applied"
    UNFINISHED = "never finished"
    SCRATCH = "of a trial"
    FOREIGN = "foreign, asked for"


class WhyNot(StrEnum):
    """Why a file that no retained snapshot needs stays."""

    YOUNG = "younger than the grace period"
    UNDECIDED = "of an epoch under way"
    PENDING_BASE = "a base that a driver may be about to name"
    JUST_EXPIRED = "of a snapshot that expired within the grace period"
    IN_USE = "of a branch that an operation works on"
    UNKNOWN = "of a branch whose snapshots cannot all be read"
    FOREIGN = "foreign: no part of this catalog"


@dataclass(frozen=True)
class BranchFacts:
    """A branch of the catalog. ``decided``: prepared and committed epochs, as far as they were not collected."""

    decided: Collection[int] = ()
    open: Collection[int] = ()
    """Started, and prepared ones whose sinks have not all committed; of a deleted application none."""
    owned: bool = False
    """A driver may be writing."""
    bases_at: int = -1
    """The epoch of the latest bases that a snapshot of this branch names."""


@dataclass(frozen=True)
class StoreFacts:
    """What a catalog knows of a store, as far as it matters. ``branches``: all of them, by id."""

    branches: Mapping[str, BranchFacts]
    needed: Collection[str]
    """Paths that retained snapshots need."""
    just_expired: Collection[str] = frozenset()
    """Paths that snapshots need which were marked as collected within the grace period: reads may be under way."""
    in_use: Collection[str] = frozenset()
    """Branches that a running operation works on."""
    unknown: Collection[str] = frozenset()
    """Branches of which some retained snapshot could not be read, so that what it needs is not known."""
    asked_for: Collection[str] = frozenset()
    """Foreign folders that shall go."""
    named: Collection[str] = frozenset()
    """Paths in the folders :data:`layout.OF_THE_CATALOG` that the catalog names."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A file that can go."""

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
class CollectionPlan:
    """``snapshots``: to be marked as collected before any of their files goes; their paths follow after the grace."""

    snapshots: tuple[EpochKey, ...]
    files: tuple[Doomed, ...]
    needed: Amount
    spared: Mapping[WhyNot, Amount]
    foreign: Mapping[str, Amount]
    """Folders of the store that this catalog knows nothing of."""
    problems: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def plan(
    facts: StoreFacts,
    files: Sequence[StoredFile],
    now: datetime,
    grace: timedelta,
    snapshots: Sequence[EpochKey] = (),
    problems: Sequence[str] = (),
) -> CollectionPlan:
    """What can go of ``files``."""
    counted = _Counted()
    oldest = now - grace
    scratch = _scratch(facts, files, oldest)
    for file in files:
        folder = file.path.partition("/")[0]
        verdict = _judge(facts, file, folder, oldest, folder in scratch)
        counted.add(file, folder, verdict)
    return CollectionPlan(
        snapshots=tuple(snapshots),
        files=tuple(counted.doomed),
        needed=counted.needed,
        spared=counted.spared,
        foreign=counted.foreign,
        problems=tuple(problems),
    )


def _judge(facts: StoreFacts, file: StoredFile, folder: str, oldest: datetime, scratch: bool) -> Why | WhyNot | None:
    """``None``: it is needed."""
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
    """The catalog names such a file before it is written, and until it is deleted: any other one is another's."""
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
    """Folders that trials left: nobody has written to them within the grace period."""
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
