"""A catalog and a store as control planes and drivers leave them, without Spark and HTTP, beside a plain model of both.

The catalog, its guarded writes, the store, deltas, manifests, compaction and collection are the real ones; what a
driver does between is done here. Of each snapshot the model keeps what must be read there, and in which order it was
committed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from epochal.contracts.catalog import EpochCounts, Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.bases import PendingBases
from epochal.engine.compaction import Compaction
from epochal.engine.position import Position
from epochal.service.applications.configuration import ApplicationConfiguration
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import BranchOrigin, add_branch, begin_attempt, begin_execution, end_attempt
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.models import Application, Artifact, Branch, Epoch, Execution, Savepoint, SnapshotPin
from epochal.service.catalog.outcomes import execution_over
from epochal.service.catalog.sql import SqlCatalog
from epochal.service.catalog.types import now
from epochal.service.retention.collecting import Collection, CollectionRequest
from epochal.service.retention.holding import hold
from epochal.service.versions.repository import VersionRepository
from epochal.snapshots import layout
from epochal.snapshots.compaction import CompactionPolicy
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import history, read_chains
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable

GROUPS, PARALLELISM, ARTIFACT = 8, 2, "a" * 64
COUNTS = StateTable(
    id="counts",
    operator="counts",
    kind=StateKind.VALUE,
    key=(Column(name="key", type="bigint"),),
    value=(Column(name="count", type="bigint"),),
)
GONE = Failure(type="driver-lost", message="it was killed")
Rows = dict[int, int]


@dataclass
class Driver:
    """What one attempt knows. It dies when a fault fires in it."""

    catalog: SqlCatalog
    position: Position
    bases: PendingBases
    compaction: Compaction


@dataclass
class App:
    """The model's side of an application: branches in the order they began, and what holds its snapshots."""

    name: str
    retained: int
    branches: list[str]
    driver: Driver | None = None
    deleted: bool = False
    savepoints: dict[str, EpochKey] = field(default_factory=dict)
    pins: set[EpochKey] = field(default_factory=set)

    @property
    def branch(self) -> str:
        return self.branches[-1]


class World:
    def __init__(self, folder: Path, compact_after: int) -> None:
        self.database = Database(f"sqlite:///{folder / 'catalog.sqlite'}")
        migrate_database(self.database)
        self.store = SnapshotStore(str(folder / "store"))
        self.policy = CompactionPolicy(epochs=compact_after, least_bytes=1 << 40)
        self.apps: list[App] = []
        self.expected: dict[EpochKey, Rows] = {}
        self.references: dict[EpochKey, ManifestReference] = {}
        self.parents: dict[str, EpochKey | None] = {}
        self.committed: list[EpochKey] = []
        """In the order of their commits."""
        self.may_be_gone: set[EpochKey] = set()
        """Not to be kept when something was collected. Later they may be in reach again, by a fork that keeps more."""
        self.chance = random.Random(7)
        with self.database.writing() as session:
            session.add(Artifact(sha256=ARTIFACT, filename="x", bytes=0, created_at=now(), created_by="me"))

    def close(self) -> None:
        self.database.close()

    # What people and control planes do.

    def create(self, retained: int, parent: EpochKey | None = None) -> App:
        name = f"app-{len(self.apps)}"
        origin = BranchOrigin("start" if parent is None else "fork", parent)
        with self.database.writing() as session:
            if parent is not None:
                hold(session, parent)
            row = ApplicationRepository(session).add(name, origin, False, "me")
            configuration = ApplicationConfiguration(retained_epochs=retained)
            VersionRepository(session).add(row, 1, ARTIFACT, {}, configuration, None, "me")
            branch = row.branch
        app = App(name, retained, [branch])
        self.parents[branch] = parent
        self.apps.append(app)
        return app

    def roll_back(self, app: App, to: EpochKey) -> None:
        self.stop(app)
        with self.database.writing() as session:
            hold(session, to)
            row = ApplicationRepository(session).named(app.name)
            branch = add_branch(session, row, BranchOrigin("rollback", to), "me")
            app.branches.append(branch.id)
        self.parents[app.branch] = to

    def delete(self, app: App) -> None:
        self.stop(app)
        with self.database.writing() as session:
            ApplicationRepository(session).named(app.name).deleted_at = now()
        app.deleted = True

    def savepoint(self, app: App, key: EpochKey) -> None:
        name = f"s{len(app.savepoints)}-{uuid4().hex[:6]}"
        with self.database.writing() as session:
            hold(session, key)
            row = ApplicationRepository(session).named(app.name)
            session.add(
                Savepoint(
                    application=row.id,
                    name=name,
                    branch=key.branch,
                    epoch=key.epoch,
                    created_at=now(),
                    created_by="me",
                )
            )
        app.savepoints[name] = key

    def delete_savepoint(self, app: App, name: str) -> None:
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            session.delete(session.get_one(Savepoint, (row.id, name)))
        del app.savepoints[name]

    def pin(self, app: App, key: EpochKey) -> None:
        with self.database.writing() as session:
            hold(session, key)
            row = ApplicationRepository(session).named(app.name)
            said = {"application": row.id, "created_at": now(), "created_by": "me"}
            session.merge(SnapshotPin(branch=key.branch, epoch=key.epoch, **said))
        for other in self.apps:
            other.pins.discard(key)
        app.pins.add(key)

    def unpin(self, app: App, key: EpochKey) -> None:
        with self.database.writing() as session:
            session.delete(session.get_one(SnapshotPin, (key.branch, key.epoch)))
        app.pins.discard(key)

    def collect(self, grace: timedelta = timedelta(0), later: timedelta = timedelta(seconds=1)) -> None:
        """As a control plane would ``later``."""
        self.may_be_gone |= self.references.keys() - self.kept()
        clock = lambda: now() + later  # noqa: E731
        Collection(self.database, self.store, clock).run(CollectionRequest(grace))

    # What drivers do.

    def start(self, app: App) -> Driver:
        """The next attempt; the one before, if it lives, is fenced."""
        if app.driver is not None:
            return app.driver
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            execution = session.get(Execution, row.execution) if row.execution else None
            if execution is None or execution.state in ("stopped", "failed"):
                execution = begin_execution(session, row)
            attempt = begin_attempt(session, execution, None)
            catalog = SqlCatalog(self.database, execution.id, attempt.number)
        point = catalog.begin_attempt()
        for record in point.started:
            catalog.abort_epoch(record.epoch, GONE)
        for record in point.prepared:
            self._commit(catalog, record.key)
        position = Position.recovered(self.store, point.branch, point.next_epoch, point.head, [COUNTS])
        bases = PendingBases()
        app.driver = Driver(catalog, position, bases, Compaction(self.store, position, bases, self.policy))
        return app.driver

    def die(self, app: App) -> None:
        """The driver is gone, and the control plane has noticed."""
        driver, app.driver = app.driver, None
        if driver is not None:
            with self.database.writing() as session:
                execution = session.get_one(Execution, driver.catalog.execution)
                end_attempt(session, execution, driver.catalog.attempt, "lost", GONE)

    def stop(self, app: App) -> None:
        """In order: everything that is decided is committed. R4 does not sweep here: what is left, collections find."""
        self.start(app)
        self.die(app)
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            execution_over(session, session.get_one(Execution, row.execution or ""), "stopped", None)

    def run_epoch(self, app: App, changes: dict[int, int | None], commit: bool = True) -> None:
        """One epoch; ``None`` deletes a key. Beside its deltas lie those of a task that lost."""
        driver = self.start(app)
        position, key = driver.position, EpochKey(driver.position.branch, driver.position.next_epoch)
        driver.catalog.open_epoch(key.epoch, position.parent)
        position.next_epoch += 1
        self._deltas(key, changes)
        reference = self.store.write_manifest(
            Manifest(
                application=app.name,
                branch=key.branch,
                epoch=key.epoch,
                parent=position.head,
                execution=driver.catalog.execution,
                attempt=driver.catalog.attempt,
                artifact=ARTIFACT,
                parallelism=PARALLELISM,
                max_parallelism=GROUPS,
                tables=(COUNTS,),
                deltas=self._deltas(key, changes),
                bases=driver.bases.take(),
                source_checkpoints={"in": {}} if driver.bases.take() else {},
                created_at=datetime.now(UTC),
            )
        )
        parent = position.parent
        driver.catalog.prepare_epoch(key.epoch, parent, reference, EpochCounts())
        manifest = self.store.read_manifest(reference)
        position.advance(manifest, reference)
        driver.bases.published(manifest)
        self.references[key] = reference
        before = self.expected[parent] if parent else {}
        after = before | {k: v for k, v in changes.items() if v is not None}
        self.expected[key] = {k: v for k, v in after.items() if changes.get(k, 0) is not None}
        if not commit:
            self.die(app)
            return
        self._commit(driver.catalog, key)
        driver.compaction.consider(key.epoch)

    def abort_epoch(self, app: App, decided: bool) -> None:
        """An epoch that leaves deltas, a log, a manifest and unfinished files, and perhaps no word to the catalog."""
        driver = self.start(app)
        key = EpochKey(driver.position.branch, driver.position.next_epoch)
        driver.catalog.open_epoch(key.epoch, driver.position.parent)
        driver.position.next_epoch += 1
        self._deltas(key, {1: 1})
        for path in (layout.manifest(key, 1), layout.log_segment(key, 1, "out", 0), layout.base(key, "counts", 0, 7)):
            self.store.write(path, b"x")
            folder, _, name = path.rpartition("/")
            self.store.write(f"{folder}/.{name}.{uuid4().hex[:8]}{layout.TEMPORARY}", b"x")
        if decided:
            driver.catalog.abort_epoch(key.epoch, GONE)
        else:
            self.die(app)

    def _deltas(self, key: EpochKey, changes: dict[int, int | None]) -> tuple:  # type: ignore[type-arg]
        numbers = pa.array(sorted(changes), pa.int64())
        rows = pa.table({"key": numbers})
        groups = key_groups(rows, pa.schema([COUNTS.key_schema.field("key")]), GROUPS)
        values = [changes[number] for number in numbers.to_pylist()]
        operations = ["delete" if value is None else "put" for value in values]
        rows = rows.append_column("count", pa.array(values, pa.int64()))
        rows = rows.append_column("_kg", pa.array(groups, pa.int32())).append_column("_op", pa.array(operations))
        written = []
        for subtask in range(PARALLELISM):
            mine = rows.filter(pa.array(groups % PARALLELISM == subtask))
            if mine.num_rows:
                written.append(write_delta(self.store, sort_changes(COUNTS, mine), key, subtask, PARALLELISM))
        return tuple(written)

    def _commit(self, catalog: SqlCatalog, key: EpochKey) -> None:
        catalog.commit_epoch(key.epoch)
        self.committed.append(key)

    # What the model says.

    def lineage(self, branch: str) -> list[EpochKey]:
        """The committed snapshots of a branch and of what it stands on, oldest first."""
        parent = self.parents[branch]
        before = [] if parent is None else [key for key in self.lineage(parent.branch) if key.epoch <= parent.epoch]
        return before + [key for key in self.committed if key.branch == branch]

    def retained(self, app: App) -> set[EpochKey]:
        """By count, along the lineage; of branches that were left, what is as young as that."""
        lineage = self.lineage(app.branch)
        kept = lineage[-app.retained :]
        since = self.committed.index(kept[0]) if len(kept) == app.retained else 0
        gone = self.may_be_gone & self.collected() if self.may_be_gone else set()
        lineage_keys = set(lineage)
        others = [
            key
            for position, key in enumerate(self.committed)
            if key.branch in app.branches and key not in lineage_keys and position >= since
        ]
        return {*kept, *others} - gone

    def kept(self) -> set[EpochKey]:
        """All that must be readable."""
        found: set[EpochKey] = set()
        for app in self.apps:
            if app.deleted:
                continue
            found |= self.retained(app) | set(app.savepoints.values()) | app.pins
            branch: str | None = app.branch
            while branch is not None:
                parent = self.parents[branch]
                found |= {parent} if parent else set()
                branch = parent.branch if parent else None
            found |= {key for key in self.references if key.branch in app.branches and key not in self.committed}
        return found

    def needed(self, key: EpochKey) -> Iterator[str]:
        """The files of a snapshot, by what readers and recovery do."""
        reference = self.references[key]
        chain = read_chains(self.store, reference, [COUNTS.id])[COUNTS.id]
        yield from (base.file.path for base in chain.bases)
        yield from (delta.file.path for link in chain.links for delta in link.deltas)
        current: ManifestReference | None = reference
        for manifest in history(self.store, reference):
            assert current is not None
            yield current.path
            if manifest.key == chain.base_at:
                return
            current = manifest.parent

    def pending(self) -> set[str]:
        """Bases that a living driver may come to name."""
        drivers = [app.driver for app in self.apps if app.driver is not None]
        return {base.file.path for driver in drivers for base in driver.bases.take()}

    def application(self, app: App) -> Application:
        with self.database.reading() as session:
            return ApplicationRepository(session).named(app.name)

    def collected(self) -> set[EpochKey]:
        with self.database.reading() as session:
            rows = session.query(Epoch).filter(Epoch.collected_at.is_not(None)).all()
            return {EpochKey(row.branch, row.epoch) for row in rows}

    def owned(self) -> set[str]:
        with self.database.reading() as session:
            return {row.id for row in session.query(Branch).filter(Branch.owned).all()}
