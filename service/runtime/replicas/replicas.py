"""The replicas of all applications, and the thread that updates them after commits."""

from __future__ import annotations

import gc
import logging
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from epochal.background.service import BackgroundService
from epochal.errors import EnvironmentProblem
from epochal.service.domain.events import COMMITTED, EXECUTION, OPERATION, Topics
from epochal.service.domain.snapshots import ApplicationHead, Snapshots
from epochal.service.runtime.events.hub import EventHub
from epochal.service.runtime.replicas.claim import ClaimedFolder, claim
from epochal.service.runtime.replicas.follower import FollowedApplication, FollowedTable, Follower
from epochal.service.runtime.replicas.index import ReplicaIndex
from epochal.service.runtime.replicas.replica import UNREADABLE
from epochal.service.runtime.replicas.serving import FALLBACK_SECONDS, ServedReplicas
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.replicas")

INDEX = "index"
"""Folder of the index, next to the folders of the branches."""
_SWITCH_SECONDS = 0.001
_OPEN_FILES = 65_536
"""Maximum limit of open files. The usual soft limit is 1,024; a process may raise it up to the hard limit. Drivers
inherit the limit, so it must not be in the millions."""
_SHARE = 0.2
"""Maximum share of time for catalog queries, regardless of the number of applications and commits."""


class Replicas(ServedReplicas):
    """A component that maintains replicas and reads them in the same process.

    Other processes read the replicas through its index.
    """

    def __init__(
        self,
        directory: Path,
        store: SnapshotStore,
        snapshots: Snapshots,
        events: EventHub | None,
        claimed: Path | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """``claimed``: a folder that another process has claimed for this one, and whose readers continue meanwhile.

        Without it, :meth:`open` claims a folder below ``directory``, and withdraws existing entries of the index until
        they have been followed again. Without ``events``, the catalog is polled every second. ``most_bytes``: size of
        the files of a table above which it has no replica.
        """
        super().__init__(store)
        self._snapshots = snapshots
        self._directory = directory
        self._given = claimed
        self._most_bytes = most_bytes
        self._claim: ClaimedFolder | None = None
        self._followers: dict[str, Follower] = {}
        self._earliest = 0.0
        """Earliest time of the next round."""
        self._present: set[tuple[str, str]] | None = None
        self._service = BackgroundService("replicas", self._step, FALLBACK_SECONDS)
        if events is not None:
            events.listen(self.heard)

    def open(self) -> None:
        shorten_pauses()
        allow_open_files()
        if self._given is None:
            self._claim = claim(self._directory)
        self._index = self._open_index()
        if self._given is None:
            self._index.retract()
        self._service.start()

    def close(self) -> None:
        self._closing = True
        self._service.stop(timeout=30)
        for follower in self._followers.values():
            follower.close()
        self._index.close()
        if self._claim is not None:
            self._claim.release()

    def check_followed(self) -> None:
        """Always passes: an application that has not been followed yet is unknown here."""

    @property
    def folder(self) -> Path:
        """Folder of the replicas; available after :meth:`open`."""
        if self._claim is not None:
            return self._claim.path
        assert self._given is not None
        return self._given

    def table(self, application: str, table: str) -> FollowedTable | None:
        follower = self._followers.get(application)
        if follower is None or (self._answered and self._is_behind(application, follower.seen)):
            return None
        return follower.seen.tables.get(table)

    def application(self, application: str) -> FollowedApplication | None:
        follower = self._followers.get(application)
        return None if follower is None else follower.seen

    def heard(self, topics: Topics) -> None:
        """Start a round immediately if a topic is relevant, rather than within a second."""
        # Of the epoch events only commits matter. The other topics may mean a new, deleted or rolled-back application.
        if topics & {COMMITTED, EXECUTION, OPERATION}:
            self._service.wake()

    def _open_index(self) -> ReplicaIndex:
        try:
            try:
                return ReplicaIndex.open(self.folder / INDEX)
            except UNREADABLE as error:
                log.warning("replicas in %s cannot be read (%s); rebuilding them", self.folder, error)
                for entry in self.folder.iterdir():
                    shutil.rmtree(entry)
                return ReplicaIndex.open(self.folder / INDEX)
        except (lmdb.Error, OSError) as error:
            raise EnvironmentProblem(
                f"Replicas cannot be kept in {self.folder}: {error}. Free space there, grant this user write access, "
                "or choose another data directory with --home."
            ) from error

    def _step(self) -> None:
        """Follow the catalog. A failed round is repeated from the then current state of the catalog."""
        self._service.pause(self._earliest - time.monotonic())
        if self._closing:
            return
        began = time.monotonic()
        heads = self._snapshots.heads()
        self._earliest = began + min(FALLBACK_SECONDS, (time.monotonic() - began) / _SHARE)
        self._round(heads)

    def _round(self, heads: Sequence[ApplicationHead]) -> None:
        for head in heads:
            follower = self._followers.get(head.application)
            if follower is None or follower.seen.branch != head.branch:
                follower = self._followers[head.application] = self._begin(head)
            if follower.follow(head):
                self.moved.ring()
            if not follower.published and (follower.seen.at or follower.seen.problem):
                self._publish(follower, head.application)
            if self._closing:
                return
        self._forget(heads)
        self._index.note_round()

    def _forget(self, heads: Sequence[ApplicationHead]) -> None:
        """Drop the replicas of deleted applications and of branches that are no longer current."""
        where = {(head.application, head.branch) for head in heads}
        if where == self._present:
            return
        present = {application for application, _ in where}
        for application in [name for name in self._followers if name not in present]:
            self._followers.pop(application)
        gone = [name for name in self._index.applications() if name not in present]
        if gone:
            self._index.forget(gone)
        self._clear({branch for _, branch in where})
        self._present = where

    def _begin(self, head: ApplicationHead) -> Follower:
        left = self._index.left(head.application)
        follower = Follower(self.store, self.folder, head.branch, left, self._most_bytes, lambda: self._closing)
        if left is not None and left.position is not None and left.tables.branch != head.branch:
            # After a rollback, the published state is from another branch whose epochs have the same numbers.
            self._publish(follower, head.application)
        return follower

    def _publish(self, follower: Follower, application: str) -> None:
        """Publish to other processes.

        After a failure, their readers stay at the previous state; a later round retries.
        """
        try:
            follower.publish(self._index, application)
        except lmdb.Error as error:
            log.error("cannot publish the state of the replicas of %s: %s", application, error)

    def _clear(self, branches: set[str]) -> None:
        """Delete the folders of other branches. Open files stay readable until the last reader closes them."""
        for entry in self.folder.iterdir():
            if entry.name not in branches and entry.name != INDEX:
                shutil.rmtree(entry, ignore_errors=True)


def allow_open_files() -> None:
    """Raise the limit of open files to the hard limit, at most 65,536. Each replica keeps two files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # some systems allow less than the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def shorten_pauses() -> None:
    """Limit the delays that other threads and the garbage collector cause to the event loop, which answers look-ups."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Imported objects are permanent: exclude them from every later collection.
    gc.collect()
    gc.freeze()
