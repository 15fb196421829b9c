"""Retained snapshots are readable and all others are deleted, through random actions and kills at any point.

Random sequences of epochs, upgrades, rescalings, forks, rollbacks, savepoints, pins, deletions, exports, imports,
compactions and collections over two real stores and two real catalogs, against plain models of them
(``retention_model``). After every step, every snapshot that a model retains on any branch is read and compared; after
a collection no other file may exist.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotExpired
from epochal.faults import FaultPoint, injected
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.models import Epoch
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.domain.settings import Settings
from epochal.snapshots import layout
from epochal.snapshots.collection import WaitingLimit
from epochal.snapshots.reader import SnapshotReader
from tests.kit.stores import snapshot_files
from tests.unit.property.counting import NOTED, Changes
from tests.unit.property.moving import Mover
from tests.unit.property.retention_model import App
from tests.unit.property.retention_world import World

MEMORY = Path("/dev/shm")
"""Thousands of small durable writes, which need no disk."""
CHANGES = st.dictionaries(st.integers(0, 12), st.none() | st.integers(0, 3), max_size=5)
ENDS = st.sampled_from(["committed", "prepared", "given up"])
APPS = 5
"""Maximum number of applications in one world, including deleted ones."""


class Crash(BaseException):
    """The process was killed."""


class RetentionMachine(RuleBasedStateMachine):
    @initialize(compact_after=st.integers(2, 5), retained=st.integers(1, 4))
    def begin(self, compact_after: int, retained: int) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.worlds = [World(Settings(data=self.folder / name), compact_after) for name in ("here", "there")]
        self.movers = [Mover(world) for world in self.worlds]
        for world in self.worlds:
            world.create(retained)

    def teardown(self) -> None:
        if hasattr(self, "worlds"):
            for world in self.worlds:
                self._collect(world)
            self.everything_retained_is_readable()
            for world in self.worlds:
                world.close()
            shutil.rmtree(self.folder)

    # Actions of drivers.

    @rule(changes=CHANGES, data=st.data())
    def run_epoch(self, changes: Changes, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.run_epoch(app, changes)

    @rule(changes=st.lists(CHANGES, min_size=2, max_size=6), data=st.data())
    def run_epochs(self, changes: list[Changes], data: st.DataObject) -> None:
        world, app = self._place(data)
        for some in changes:
            world.run_epoch(app, some)

    @rule(changes=CHANGES, data=st.data())
    def prepare_and_die(self, changes: Changes, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.run_epoch(app, changes, commit=False)

    @rule(decided=st.booleans(), data=st.data())
    def abort_epoch(self, decided: bool, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.abort_epoch(app, decided)

    @rule(changes=st.lists(CHANGES, min_size=3, max_size=6), hits=st.integers(1, 4), data=st.data())
    def die_while_compacting(self, changes: list[Changes], hits: int, data: st.DataObject) -> None:
        world, app = self._place(data)
        for some in changes:
            if _killed(lambda some=some: world.run_epoch(app, some), "E7.", hits):  # type: ignore[misc]
                world.die(app)
                return

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.die(app)
        world.start(app)

    @rule(parallelism=st.integers(1, 5), changes=CHANGES, ends=ENDS, data=st.data())
    def rescale(self, parallelism: int, changes: Changes, ends: str, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.reconfigure(app, app.table, parallelism, changes, ends)

    @rule(changes=CHANGES, ends=ENDS, data=st.data())
    def upgrade(self, changes: Changes, ends: str, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.reconfigure(app, NOTED, app.parallelism, changes, ends)

    # Actions of people.

    @rule(retained=st.integers(1, 4), data=st.data())
    def fork(self, retained: int, data: st.DataObject) -> None:
        world, app = self._place(data)
        key = self._snapshot(world, app, data)
        if key is not None and len(world.model.apps) < APPS:
            world.create(retained, key, app.table)

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        world.stop(app)
        key = self._snapshot(world, app, data)
        if key is not None:
            world.roll_back(app, key)

    @rule(data=st.data())
    def make_savepoint(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        key = self._snapshot(world, app, data)
        if key is not None:
            world.savepoint(app, key)

    @rule(data=st.data())
    def delete_savepoint(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        if app.savepoints:
            world.delete_savepoint(app, data.draw(st.sampled_from(sorted(app.savepoints))))

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        key = self._snapshot(world, app, data)
        if key is not None:
            world.pin(app, key)

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        if app.pins:
            world.unpin(app, data.draw(st.sampled_from(sorted(app.pins))))

    @rule(data=st.data())
    def delete_application(self, data: st.DataObject) -> None:
        world, app = self._place(data)
        if len(world.model.living) > 1:
            world.delete(app)

    # Bundles.

    @rule(to=st.integers(0, 1), whole=st.booleans(), dies=st.integers(0, 9), data=st.data())
    def move(self, to: int, whole: bool, dies: int, data: st.DataObject) -> None:
        """Into the other world or the same one; ``dies``: step at which the first try is killed, on either side."""
        world, app = self._place(data)
        key = self._snapshot(world, app, data)
        source, target = self.movers[self.worlds.index(world)], self.movers[to]
        if key is None or len(target.world.model.apps) >= APPS:
            return
        since = None if whole else self._common(world, target.world, app, key, data)
        export = source.request_export(app, key, since)
        _killed(source.work_off, "export.", dies)
        source.work_off()
        bundle = source.bundle(export)
        imported = target.request_import(bundle, f"app-{len(target.world.model.apps)}")
        _killed(target.work_off, "import.", dies)
        target.work_off()
        target.imported(imported, bundle, world)

    # Collections.

    @rule(world_index=st.integers(0, 1))
    def collect(self, world_index: int) -> None:
        self._collect(self.worlds[world_index])

    @rule(world_index=st.integers(0, 1))
    def collect_with_shortened_grace(self, world_index: int) -> None:
        """No file may wait: what the first collection marks, the second one deletes."""
        world, limit = self.worlds[world_index], WaitingLimit(0, 0, timedelta(milliseconds=1))
        world.collect(timedelta(hours=1), limit=limit)
        world.collect(timedelta(hours=1), timedelta(seconds=2), limit)
        self._check_files(world)

    def _collect(self, world: World) -> None:
        world.collect()
        self._check_files(world)

    def _check_files(self, world: World) -> None:
        """No referenced file was deleted, and all others, except those that a driver may still write or name."""
        needed = {path for key in world.model.required() for path in world.needed(key)}
        existing = set(snapshot_files(world.store))
        assert needed <= existing, sorted(needed - existing)
        left = {path for path in existing - needed - world.pending() if not self._may_be_written(world, path)}
        assert not left, sorted(left)

    @rule(hits=st.integers(1, 25), world_index=st.integers(0, 1))
    def die_while_collecting(self, hits: int, world_index: int) -> None:
        _killed(self.worlds[world_index].collect, "G", hits)

    @rule(world_index=st.integers(0, 1))
    def collect_with_grace(self, world_index: int) -> None:
        """Recently expired snapshots are only marked."""
        world = self.worlds[world_index]
        before = set(snapshot_files(world.store))
        world.collect(grace=timedelta(hours=1))
        assert set(snapshot_files(world.store)) == before

    @invariant()
    def everything_retained_is_readable(self) -> None:
        for world in self.worlds:
            required = world.model.required()
            for key in required:
                rows = SnapshotReader(world.store, world.model.references[key]).read("counts").to_pylist()
                assert {row.pop("key"): row for row in rows} == world.model.expected[key], key
            assert not required & world.collected()

    @invariant()
    def answers_agree(self) -> None:
        """The catalog serves exactly the snapshots that the model retains."""
        for world in self.worlds:
            required = world.model.required()
            with world.database.reading() as session:
                for app in world.model.living:
                    row = ApplicationRepository(session).named(app.name)
                    for key in world.model.lineage(app.branch):
                        try:
                            SnapshotRepository(session).check_retained(row, key)
                        except SnapshotExpired:
                            assert key not in world.model.retained(app)
                        else:
                            assert key in required

    def _may_be_written(self, world: World, path: str) -> bool:
        """A file of an undecided epoch whose driver died, or a base of a running driver."""
        place = layout.place_of(path)
        assert place is not None
        if place.kind == "base":
            return place.branch in world.owned()
        with world.database.reading() as session:
            row = session.get(Epoch, (place.branch, place.epoch))
        return row is not None and row.state in ("started", "prepared")

    def _place(self, data: st.DataObject) -> tuple[World, App]:
        world = self.worlds[data.draw(st.integers(0, 1))]
        apps = world.model.living
        return world, apps[data.draw(st.integers(0, len(apps) - 1))]

    def _snapshot(self, world: World, app: App, data: st.DataObject) -> EpochKey | None:
        known = sorted(world.model.retained(app)) if world.model.lineage(app.branch) else []
        return known[data.draw(st.integers(0, len(known) - 1))] if known else None

    def _common(self, source: World, target: World, app: App, key: EpochKey, data: st.DataObject) -> EpochKey | None:
        """An ancestor that both worlds have."""
        before = [other for other in source.model.lineage(key.branch) if other.epoch < key.epoch]
        known = (source.model.retained(app) & set(before) & target.model.references.keys()) - target.collected()
        return data.draw(st.sampled_from(sorted(known))) if known else None


def _killed(work: Callable[[], None], points: str, hits: int) -> bool:
    """Kills the work at this hit of the points; returns ``False`` if it ends before."""
    left = hits

    def handler(point: FaultPoint, epoch: int | None) -> None:
        nonlocal left
        if point.name.startswith(points):
            left -= 1
            if left == 0:
                raise Crash

    try:
        with injected(handler):
            work()
    except Crash:
        return True
    return False


RetentionMachine.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 5 if settings.default.max_examples > 25 else 3,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRetention = RetentionMachine.TestCase
