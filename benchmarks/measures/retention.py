"""Size of the store over two hours of epochs that change random rows of a large state table, and collections.

Epochs, compactions, files and the plans of collections are real; time is simulated, one second an epoch. Everything is
a tenth of the case that it stands for, 20,000,000 keys of which each epoch changes 10,000: the keys, the changed rows,
the sizes of cells, and the limit. Sizes do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from benchmarks.measures.runs import CHANGED, KEYS, WIDE, Life
from benchmarks.result import Result, at_most, number
from epochal.service.commands.collections import LEAST_INTERVAL, WRITTEN_FOR_DELTAS
from epochal.service.domain.settings import Settings
from epochal.snapshots.collection import BranchFacts, CollectionPlan, StoreFacts, WaitingLimit, plan
from epochal.snapshots.merge_policy import CELL_SIZES, CompactionPolicy, bytes_of_bases
from epochal.snapshots.store import SnapshotStore, StoredFile

SCALE, HOUR, RETAINED = 10, 3_600, 5
LOOK_SECONDS = 60
START = datetime.fromtimestamp(0, UTC)
SIZES = replace(
    CELL_SIZES,
    whole=CELL_SIZES.whole // SCALE,
    most=CELL_SIZES.most // SCALE,
    most_rows=CELL_SIZES.most_rows // SCALE,
    least=CELL_SIZES.least // SCALE,
    merged=CELL_SIZES.merged // SCALE,
)
COMPACTIONS = CompactionPolicy(bytes=CompactionPolicy().bytes // SCALE)
LIMIT = WaitingLimit(Settings().waiting_share, WaitingLimit(1).bytes // SCALE)


def run(folder: Path) -> list[Result]:
    life = Life(SnapshotStore(str(folder / "store")), sizes=SIZES)
    for start in range(0, KEYS, KEYS // 4):
        life.epoch(np.arange(start, start + KEYS // 4))
    life.compact()
    live, store = bytes_of_bases([life.chain]), Store(life)
    chance = np.random.default_rng(1)
    after_an_hour = greatest = 0
    for second in range(1, 2 * HOUR + 1):
        life.epoch(np.unique(chance.integers(0, KEYS, CHANGED // SCALE)))
        if COMPACTIONS.is_due({WIDE.id: life.chain}):
            life.compact()
        store.look(timedelta(seconds=second))
        greatest = max(greatest, store.bytes)
        if second == HOUR:
            after_an_hour = store.bytes
    how = f"{KEYS * SCALE:,} keys, {CHANGED:,} changed an epoch of 1 s, retained_epochs={RETAINED}; a tenth of it"
    return [
        at_most("retention: store after an hour, of the live rows", after_an_hour / live, 3, "times", how),
        number("retention: store after two hours, of the live rows", store.bytes / live, "times", how),
        number("retention: store at most in two hours, of the live rows", greatest / live, "times", how),
    ]


@dataclass
class Store:
    """The files of one branch, and what a control plane with the default settings does with them."""

    life: Life
    files: dict[str, StoredFile] = field(default_factory=dict)
    retained: list[set[str]] = field(default_factory=list)
    expired: dict[str, datetime] = field(default_factory=dict)
    """When a collection first found that no retained snapshot needs a file."""
    latest: CollectionPlan | None = None
    collected_at: datetime = START
    deltas_then: int = 0

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def look(self, time: timedelta) -> None:
        """Note the files of the newest epoch, then collect if that is due."""
        now, files = START + time, self._newest()
        for path, size in files.items():
            self.files.setdefault(path, StoredFile(path, size, now))
        self.retained = [*self.retained, set(files)][-RETAINED:]
        if int(time.total_seconds()) % LOOK_SECONDS == 0 and self._is_due(now - self.collected_at):
            self._collect(now)

    def _newest(self) -> dict[str, int]:
        runs = [run.file for run in self.life.chain.bases]
        deltas = [delta.file for link in self.life.chain.links for delta in link.deltas]
        return {file.path: file.bytes for file in (*runs, *deltas)}

    def _is_due(self, since: timedelta) -> bool:
        written = WRITTEN_FOR_DELTAS * (self.life.written["deltas"] - self.deltas_then)
        waiting, needed = (self.latest.waiting, self.latest.needed.bytes) if self.latest else (0, 0)
        early = since >= LEAST_INTERVAL and not LIMIT.allows(written + waiting, needed)
        return early or since.total_seconds() >= (Settings().collect_every_seconds or 0)

    def _collect(self, now: datetime) -> None:
        needed = set.union(*self.retained)
        for path in self.files.keys() - needed:
            self.expired.setdefault(path, now)
        of_branch = BranchFacts(range(self.life.epochs + 1), owned=True, bases_at=self.life.epochs)

        def planned(grace: timedelta) -> CollectionPlan:
            waiting = {path for path, expired in self.expired.items() if expired > now - grace}
            facts = StoreFacts({"main": of_branch}, needed, waiting)
            return plan(facts, tuple(self.files.values()), now, grace)

        self.latest = LIMIT.plan(timedelta(seconds=Settings().grace_seconds), planned)
        for file in self.latest.files:
            self.life.store.delete(file.path)
            del self.files[file.path]
        self.collected_at, self.deltas_then = now, self.life.written["deltas"]
