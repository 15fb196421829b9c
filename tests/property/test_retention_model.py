"""Whatever people, drivers and collections do, wherever they are killed: what is retained is there, and nothing else.

Random sequences of epochs, forks, rollbacks, savepoints, pins, deletions, compactions and collections over a real store
and a real catalog, against a plain model (``retention_world``). After every step every snapshot that the model says is
retained, of every branch, is read and compared; after a collection nothing else may be left.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotExpired
from epochal.faults import FaultPoint, injected
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.models import Epoch
from epochal.service.snapshots.repository import SnapshotRepository
from epochal.snapshots import layout
from epochal.snapshots.reader import SnapshotReader
from tests.property.retention_world import App, Rows, World

MEMORY = Path("/dev/shm")
"""Thousands of small durable writes: no disk needs to see them."""
CHANGES = st.dictionaries(st.integers(0, 12), st.none() | st.integers(0, 3), max_size=5)


class Crash(BaseException):
    """The process is gone."""


class Lives(RuleBasedStateMachine):
    @initialize(compact_after=st.integers(2, 5), retained=st.integers(1, 4))
    def begin(self, compact_after: int, retained: int) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.world = World(self.folder, compact_after)
        self.world.create(retained)
        self.read: dict[EpochKey, Rows] = {}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.collect()
            self.everything_retained_is_readable()
            self.world.close()
            shutil.rmtree(self.folder)

    # Drivers.

    @rule(changes=CHANGES, data=st.data())
    def run_epoch(self, changes: dict[int, int | None], data: st.DataObject) -> None:
        self.world.run_epoch(self._app(data), changes)

    @rule(changes=st.lists(CHANGES, min_size=2, max_size=6), data=st.data())
    def run_epochs(self, changes: list[dict[int, int | None]], data: st.DataObject) -> None:
        app = self._app(data)
        for some in changes:
            self.world.run_epoch(app, some)

    @rule(changes=CHANGES, data=st.data())
    def prepare_and_die(self, changes: dict[int, int | None], data: st.DataObject) -> None:
        self.world.run_epoch(self._app(data), changes, commit=False)

    @rule(decided=st.booleans(), data=st.data())
    def abort_epoch(self, decided: bool, data: st.DataObject) -> None:
        self.world.abort_epoch(self._app(data), decided)

    @rule(changes=st.lists(CHANGES, min_size=3, max_size=6), hits=st.integers(1, 4), data=st.data())
    def die_while_compacting(self, changes: list[dict[int, int | None]], hits: int, data: st.DataObject) -> None:
        app = self._app(data)
        for some in changes:
            if self._killed(lambda some=some: self.world.run_epoch(app, some), "E7.", hits):  # type: ignore[misc]
                self.world.die(app)
                return

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        app = self._app(data)
        self.world.die(app)
        self.world.start(app)

    # People.

    @precondition(lambda self: len(self.world.apps) < 4)
    @rule(retained=st.integers(1, 4), data=st.data())
    def fork(self, retained: int, data: st.DataObject) -> None:
        key = self._snapshot(self._app(data), data)
        if key is not None:
            self.world.create(retained, key)

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        app = self._app(data)
        self.world.stop(app)
        key = self._snapshot(app, data)
        if key is not None:
            self.world.roll_back(app, key)

    @rule(data=st.data())
    def make_savepoint(self, data: st.DataObject) -> None:
        app = self._app(data)
        key = self._snapshot(app, data)
        if key is not None:
            self.world.savepoint(app, key)

    @rule(data=st.data())
    def delete_savepoint(self, data: st.DataObject) -> None:
        app = self._app(data)
        if app.savepoints:
            self.world.delete_savepoint(app, data.draw(st.sampled_from(sorted(app.savepoints))))

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        app = self._app(data)
        key = self._snapshot(app, data)
        if key is not None:
            self.world.pin(app, key)

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        app = self._app(data)
        if app.pins:
            self.world.unpin(app, data.draw(st.sampled_from(sorted(app.pins))))

    @precondition(lambda self: sum(not app.deleted for app in self.world.apps) > 1)
    @rule(data=st.data())
    def delete_application(self, data: st.DataObject) -> None:
        self.world.delete(self._app(data))

    # Collections.

    @rule()
    def collect(self) -> None:
        """Nothing that is referenced goes; nothing else stays, but what others left and a driver may still name."""
        self.world.collect()
        world = self.world
        needed = {path for key in world.kept() for path in world.needed(key)}
        there = set(world.store.list(""))
        assert needed <= there, sorted(needed - there)
        left = {path for path in there - needed - world.pending() if not self._may_be_written(path)}
        assert not left, sorted(left)

    @rule(hits=st.integers(1, 25))
    def die_while_collecting(self, hits: int) -> None:
        self._killed(self.world.collect, "G", hits)

    @rule()
    def collect_with_grace(self) -> None:
        """What expired a moment ago is only marked."""
        before = set(self.world.store.list(""))
        self.world.collect(grace=timedelta(hours=1))
        assert set(self.world.store.list("")) == before

    @invariant()
    def everything_retained_is_readable(self) -> None:
        for key in self.world.kept():
            reference = self.world.references[key]
            rows = SnapshotReader(self.world.store, reference).read("counts").to_pylist()
            assert {row["key"]: row["count"] for row in rows} == self.world.expected[key], key
        assert not self.world.kept() & self.world.collected()

    @invariant()
    def answers_agree(self) -> None:
        """What can be asked for is retained, by the model too; everything else has expired."""
        kept = self.world.kept()
        with self.world.database.reading() as session:
            for app in self._living():
                row = ApplicationRepository(session).named(app.name)
                for key in self.world.lineage(app.branch):
                    try:
                        SnapshotRepository(session).check_retained(row, key)
                    except SnapshotExpired:
                        assert key not in self.world.retained(app)
                    else:
                        assert key in kept

    def _may_be_written(self, path: str) -> bool:
        """Of an epoch that was never decided, whose driver died without a word; or a base of a driver that lives."""
        place = layout.place_of(path)
        assert place is not None
        if place.kind == "base":
            return place.branch in self.world.owned()
        with self.world.database.reading() as session:
            row = session.get(Epoch, (place.branch, place.epoch))
        return row is not None and row.state in ("started", "prepared")

    def _killed(self, work: Callable[[], None], points: str, hits: int) -> bool:
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

    def _living(self) -> list[App]:
        return [app for app in self.world.apps if not app.deleted]

    def _app(self, data: st.DataObject) -> App:
        apps = self._living()
        return apps[data.draw(st.integers(0, len(apps) - 1))]

    def _snapshot(self, app: App, data: st.DataObject) -> EpochKey | None:
        known = sorted(self.world.retained(app)) if self.world.lineage(app.branch) else []
        return known[data.draw(st.integers(0, len(known) - 1))] if known else None


Lives.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRetention = Lives.TestCase
