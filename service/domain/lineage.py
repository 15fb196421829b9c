"""Condensed listing of a lineage: listed snapshots, and runs of the epochs between them.

At most one run lies between two listed snapshots of a branch. It is identified by its ends, so that the cost depends on
the listed snapshots only, not on the number of epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from epochal.contracts.identity import EpochKey

SHORTEST_RUN = 3


@dataclass(frozen=True, order=True)
class ListedSnapshot:
    """A snapshot that is listed individually. In this order parents precede children: numbers increase along a lineage,
    and times do not decrease."""

    prepared_at: datetime
    epoch: int
    branch: str

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


@dataclass(frozen=True)
class Run:
    """The epochs of a branch after epoch ``after`` and before a listed snapshot."""

    before: ListedSnapshot
    after: int


@dataclass(frozen=True)
class RunSummary:
    """Number of epochs of a run, its oldest and newest, and the sums of their counts."""

    epochs: int
    first: int
    last: int
    rows_in: int
    rows_out: int
    state_rows: int
    state_bytes: int


Item = ListedSnapshot | Run
Place = tuple[datetime, int, int, str]


def place_of(item: Item) -> Place:
    """Position of an item, also used as a cursor. A run directly follows the snapshot that was built on it."""
    listed = item.before if isinstance(item, Run) else item
    return listed.prepared_at, listed.epoch, 0 if isinstance(item, Run) else 1, listed.branch


def items_of(listed: Sequence[ListedSnapshot]) -> list[Item]:
    """All listed snapshots and the possible runs between them, newest first."""
    return sorted([*listed, *_runs(listed)], key=place_of, reverse=True)


def _runs(listed: Sequence[ListedSnapshot]) -> Iterator[Run]:
    by_branch: dict[str, list[ListedSnapshot]] = {}
    for item in listed:
        by_branch.setdefault(item.branch, []).append(item)
    for of_branch in by_branch.values():
        for older, newer in pairwise(sorted(of_branch, key=lambda item: item.epoch)):
            if newer.epoch - older.epoch > 1:
                yield Run(newer, older.epoch)
