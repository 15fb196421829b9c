"""The replicas of all applications: a thread that follows, woken by commits."""

from __future__ import annotations

import gc
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from epochal.errors import CatalogUnavailable
from epochal.service.domain.ports import ApplicationHead, ControlEvent, Snapshots
from epochal.service.runtime.events.bell import Bell
from epochal.service.runtime.events.hub import EventHub
from epochal.service.runtime.replicas.follower import FollowedApplication, FollowedTable, Follower
from epochal.service.runtime.replicas.overlay import Overlays
from epochal.service.runtime.replicas.replica import Replica
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.replicas")

FALLBACK_SECONDS = 1.0
"""How often the catalog is asked without an event: for commits that another control plane was told of."""

_SWITCH_SECONDS = 0.001
_CLOSE_AFTER_SECONDS = 10.0


class Replicas:
    """A component; look-ups read through :meth:`table` and :meth:`application`."""

    def __init__(self, directory: Path, store: SnapshotStore, snapshots: Snapshots, events: EventHub) -> None:
        self.store = store
        self.snapshots = snapshots
        self.overlays = Overlays(store)
        self.moved = Bell()
        """Rung when some replica has reached another epoch."""
        self._directory = directory
        self._followers: dict[str, Follower] = {}
        self._retired: list[tuple[float, Replica]] = []
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)
        events.listen(self._heard)

    def open(self) -> None:
        _shorten_pauses()
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        for follower in self._followers.values():
            self._retire(follower)
        for _, replica in self._retired:
            replica.close()

    def table(self, application: str, table: str) -> FollowedTable | None:
        """One queryable table; ``None`` when there is none, or none yet. Costs two dictionary look-ups."""
        follower = self._followers.get(application)
        return None if follower is None else follower.seen.tables.get(table)

    def application(self, application: str) -> FollowedApplication | None:
        """What is followed of an application; ``None`` when it is not known (yet)."""
        follower = self._followers.get(application)
        return None if follower is None else follower.seen

    async def wait(self, there: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``there()``, which is asked again whenever a replica has moved. False when the time is over."""
        deadline = time.monotonic() + seconds
        with self.moved.listener() as listener:
            while True:
                listener.forget()
                if there():
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self._closing:
                    return False
                await listener.wait(min(left, FALLBACK_SECONDS))

    def _heard(self, event: ControlEvent) -> None:
        # Of epochs only commits matter; other events may mean that an application has come, gone, or moved to a fork.
        if event.kind != "epoch" or event.data.get("state") == "committed":
            self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                self._round(self.snapshots.heads())
            except CatalogUnavailable as error:
                log.warning("replicas cannot follow: %s", error)
            except Exception:
                # The next round starts from what is there then; look-ups go on meanwhile.
                log.exception("replicas could not follow")
            self._wake.wait(FALLBACK_SECONDS)

    def _round(self, heads: Sequence[ApplicationHead]) -> None:
        for head in heads:
            follower = self._followers.get(head.application)
            if follower is None or follower.seen.branch != head.branch:
                if follower is not None:
                    self._retire(follower)
                follower = self._followers[head.application] = Follower(self.store, self._directory, head.branch)
            if follower.follow(head):
                self.moved.ring()
            if self._closing:
                return
        present = {head.application for head in heads}
        for application in [name for name in self._followers if name not in present]:
            self._retire(self._followers.pop(application))
        self._clear({head.branch for head in heads})

    def _retire(self, follower: Follower) -> None:
        """Its replicas are closed later: a look-up may be reading from one."""
        close_at = time.monotonic() + _CLOSE_AFTER_SECONDS
        self._retired += [(close_at, replica) for replica in follower.take_replicas()]

    def _clear(self, branches: set[str]) -> None:
        due = [replica for close_at, replica in self._retired if close_at <= time.monotonic()]
        self._retired = [item for item in self._retired if item[1] not in due]
        for replica in due:
            replica.close()
        if not self._retired and self._directory.is_dir():
            for directory in self._directory.iterdir():
                if directory.name not in branches:
                    shutil.rmtree(directory, ignore_errors=True)


def _shorten_pauses() -> None:
    """The event loop of this process answers look-ups: neither threads nor the collector may hold it up long."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What was imported stays for good; the collector need not look at it again with every pass.
    gc.collect()
    gc.freeze()
