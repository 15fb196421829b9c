"""Folding on the side of the catalog: what is worth a line, and the runs of plain epochs between.

Between two noted snapshots of a branch lies at most one run, which is known by its ends alone: however many epochs
there are, only those that are noted are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from epochal.contracts.identity import EpochKey

SHORTEST_RUN = 3


@dataclass(frozen=True, order=True)
class Noted:
    """A snapshot that gets a line of its own. In this order a parent comes before its children: numbers rise along a
    lineage, and times do not fall."""

    prepared_at: datetime
    epoch: int
    branch: str

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


@dataclass(frozen=True)
class Run:
    """The plain epochs of a branch after epoch ``after`` and before the noted one."""

    before: Noted
    after: int


@dataclass(frozen=True)
class RunSummary:
    """How many epochs are in a run, the oldest and the newest, and the sums of their counts."""

    epochs: int
    first: int
    last: int
    rows_in: int
    rows_out: int
    state_rows: int
    state_bytes: int


Item = Noted | Run
Place = tuple[datetime, int, int, str]


def place_of(item: Item) -> Place:
    """Where an item stands, and the cursor after it: a run comes right after the snapshot that was built on it."""
    noted = item.before if isinstance(item, Run) else item
    return noted.prepared_at, noted.epoch, 0 if isinstance(item, Run) else 1, noted.branch


def items_of(noted: Sequence[Noted]) -> list[Item]:
    """All noted snapshots and what may lie between them, newest first."""
    return sorted([*noted, *_runs(noted)], key=place_of, reverse=True)


def _runs(noted: Sequence[Noted]) -> Iterator[Run]:
    by_branch: dict[str, list[Noted]] = {}
    for item in noted:
        by_branch.setdefault(item.branch, []).append(item)
    for of_branch in by_branch.values():
        for older, newer in pairwise(sorted(of_branch, key=lambda item: item.epoch)):
            if newer.epoch - older.epoch > 1:
                yield Run(newer, older.epoch)
