"""Table commits: decided epochs appear in a table of versions (Delta, Iceberg) once each, in order.

A table holds one *marker* for each branch and sink: the latest epoch that it shows. The version that adds the rows of
an epoch sets the marker, and a version is committed only if the version that was read with the marker is still the
latest one. This is a compare-and-set:

- A commit reads the marker, chooses the epochs after it (:func:`decide`), and commits them on top of what it read.
- The request of a dead driver can land late only while no other commit has landed. A later driver then conflicts, reads
  the marker again, and finds its work done.
- After an error or a lost answer, the marker decides what has happened, never the error.

An epoch without rows makes no version, so that the marker can be older than the latest committed epoch. The manifest of
each epoch therefore names the previous epoch that had rows (``DecidedEpoch.previous``). A marker that is neither that
epoch nor a later one is not explained by commits of this branch: the table was replaced, restored, or marked by another
program. Committing would lose or repeat rows, so the sink stops.

A branch whose epochs the marker has passed ignores them: a driver that was fenced changes nothing. No epoch needs a
fence, because only decided epochs are committed, and every driver of a branch has the same ones.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from epochal.backends.tables.restore_points import TableVersion
from epochal.contracts.backend import DecidedEpoch
from epochal.errors import OutcomeUnknown, SinkError, SinkUnavailable
from epochal.faults import declare

log = logging.getLogger(__name__)

LOADED: Final = declare("E5.table.loaded", "the marker of the table is read, and the epochs to commit are chosen")
COMMITTED: Final = declare("E5.table.committed", "the version with the epochs' rows and the marker is committed")
MOST_CONFLICTS: Final = 20
"""Maximum number of commits of other writers that one call gives way to."""


class HeadMoved(Exception):
    """Another commit has landed since the version was read, or this one has, and its answer was lost."""


class TableHead(ABC):
    """A table at one version. Short-lived: created by :meth:`Table.find` for one commit."""

    @property
    @abstractmethod
    def marker(self) -> int | None:
        """The epoch that the table shows of the branch; ``None`` if it has no marker."""

    @abstractmethod
    def commit(self, epochs: Sequence[DecidedEpoch]) -> None:
        """Commit the rows of the epochs and the marker of the last one in one version, if this is still the latest.

        An epoch that is given up has no rows; a version is committed nonetheless, so that a late request for it
        conflicts. Raises ``HeadMoved``, ``OutcomeUnknown`` and ``SinkError``, the latter only if nothing was committed.
        Never deletes a file.
        """


class Table(ABC):
    """A table by its address. Serialisable; holds no connection."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """The sink and its table, as messages begin: ``Sink 'out' (delta:s3://bucket/orders)``."""

    @abstractmethod
    def find(self, branch: str) -> TableHead | None:
        """The latest version, with the marker of a branch; ``None`` if there is no table. Raises ``SinkError`` for a
        table that cannot be read, and ``SinkUnavailable``."""

    @abstractmethod
    def history(self) -> Iterator[Sequence[TableVersion]]:
        """The latest versions, newest first, in longer and longer sequences. No sequence if there is no table. Raises
        ``SinkError`` and ``SinkUnavailable``."""

    def load(self, branch: str) -> TableHead:
        """Like :meth:`find`, for a table that must exist. Raises ``SinkError`` if it does not."""
        head = self.find(branch)
        if head is None:
            raise SinkError(
                f"{self.subject}: the table does not exist any more. Restore it; the commit is then retried. Or roll "
                "back to the epoch before the first one that wrote to it."
            )
        return head


@dataclass(frozen=True)
class Commit:
    """Commit these epochs, oldest first, on top of the version that was read."""

    epochs: tuple[DecidedEpoch, ...]


@dataclass(frozen=True)
class Done:
    """The table shows all epochs."""


@dataclass(frozen=True)
class Stop:
    """The marker is not explained by commits of this branch. ``reason``: what it is, and what it should be."""

    reason: str


Merged = Callable[[Sequence[DecidedEpoch]], Sequence[DecidedEpoch]]


def _as_staged(epochs: Sequence[DecidedEpoch]) -> Sequence[DecidedEpoch]:
    return epochs


def decide(marker: int | None, epochs: Sequence[DecidedEpoch]) -> Commit | Done | Stop:
    """The action for consecutive decided epochs of one branch, oldest first, and the marker of the table."""
    shown = [each for each in epochs if each.rows or each.given_up]
    if not shown or (marker is not None and marker >= shown[-1].epoch):
        return Done()
    following = [each for each in shown if marker is None or each.epoch > marker]
    expected = following[0].previous
    if len(following) < len(shown):
        expected = shown[-len(following) - 1].epoch
    if marker != expected:
        return Stop(_unexplained(marker, expected))
    return Commit(tuple(following))


def commit_decided(table: Table, epochs: Sequence[DecidedEpoch], merged: Merged = _as_staged) -> None:
    """Commit the epochs that the table does not show yet. Idempotent, also in several processes at the same time.

    ``merged``: called with the epochs that will be committed, returns them with the files to commit. Raises
    ``OutcomeUnknown``, ``SinkUnavailable`` and ``SinkError``. The call can be repeated after each of them.
    """
    if not any(each.rows or each.given_up for each in epochs):
        return
    branch, last = epochs[-1].scope.branch, epochs[-1].epoch
    for _ in range(MOST_CONFLICTS):
        head = table.load(branch)
        chosen = decide(head.marker, epochs)
        match chosen:
            case Done():
                return
            case Stop(reason):
                raise SinkError(f"{table.subject} cannot commit epoch {last}: {reason}{_remedy(epochs, head.marker)}")
            case Commit(following):
                LOADED.hit(last)
                try:
                    head.commit(merged(following))
                except HeadMoved as moved:
                    log.info("%s: %s; the marker is read again", table.subject, moved)
                    continue
                except OutcomeUnknown:
                    if isinstance(decide(table.load(branch).marker, epochs), Done):
                        return
                    raise
                COMMITTED.hit(last)
                return
    raise SinkUnavailable(
        f"{table.subject} could not commit epoch {last}: other writers have committed {MOST_CONFLICTS} versions "
        "meanwhile. The commit is retried; reduce the rate of the other writers if this persists."
    )


def _unexplained(marker: int | None, expected: int | None) -> str:
    found = "has no marker of this branch" if marker is None else f"shows epoch {marker} of this branch"
    if expected is None:
        return f"it {found}, and no earlier epoch of the branch has rows. Another program has set the marker"
    return (
        f"it {found}, and epoch {expected} was committed to it. The table was replaced or restored, or is another one"
    )


def _remedy(epochs: Sequence[DecidedEpoch], marker: int | None) -> str:
    application = epochs[0].scope.application
    back = (
        f"`epochal rollback {application}`" if marker is None else f"`epochal rollback {application} --epoch {marker}`"
    )
    return (
        ". Nothing was written. Restore the table as it was; the commit is then retried. Or continue from an earlier "
        f"snapshot, whose following epochs are then written again: {back}."
    )
