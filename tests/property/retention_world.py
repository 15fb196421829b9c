"""A catalog and a store as control planes and drivers leave them, without Spark and HTTP, beside a plain model of both.

The catalog, its guarded writes, the store, deltas, manifests, compaction, collection, exports and imports are the real
ones; what a driver does between is done here. Of each snapshot the model keeps what must be read there, and in which
order it was committed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa

from epochal.contracts.catalog import Change, EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.bases import PendingBases
from epochal.engine.compaction import Compaction
from epochal.engine.position import Position
from epochal.service.applications.configuration import ApplicationConfiguration
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.artifacts.files import artifact_path, keep
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import BranchOrigin, add_branch, begin_attempt, begin_execution, end_attempt
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.models import Application, Artifact, Branch, Epoch, Execution, Savepoint, SnapshotPin
from epochal.service.catalog.outcomes import execution_over
from epochal.service.catalog.sql import SqlCatalog
from epochal.service.catalog.types import now
from epochal.service.retention.collecting import Collection, CollectionRequest
from epochal.service.retention.holding import hold
from epochal.service.settings import Settings
from epochal.service.versions.repository import VersionRepository
from epochal.snapshots import layout
from epochal.snapshots.compaction import CompactionPolicy
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import history, read_chains
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import key_groups, subtask_of
from epochal.state.table import Column, StateKind, StateTable

GROUPS = 8
CODE = b"pipeline = ..."
ARTIFACT = hashlib.sha256(CODE).hexdigest()
COUNTS = StateTable(
    id="counts",
    operator="counts",
    kind=StateKind.VALUE,
    key=(Column(name="key", type="bigint"),),
    value=(Column(name="count", type="int"),),
)
NOTED = COUNTS.model_copy(
    update={"value": (Column(name="count", type="bigint"), Column(name="note", type="int", default=7))}
)
"""What an upgrade makes of it: a wider type, and a column that older rows have the default of."""
GONE = Failure(type="driver-lost", message="it was killed")
Rows = dict[int, dict[str, int | None]]


@dataclass
class Driver:
    """What one attempt knows. It dies when a fault fires in it."""

    catalog: SqlCatalog
    position: Position
    bases: PendingBases
    compaction: Compaction


@dataclass
class App:
    """The model's side of an application: branches in the order they began, and what holds its snapshots.

    ``table`` and ``parallelism`` are those of the version that made the head; ``versions``: how many there ever were.
    """

    name: str
    retained: int
    branches: list[str]
    table: StateTable = COUNTS
    parallelism: int = 2
    versions: int = 1
    driver: Driver | None = None
    deleted: bool = False
    savepoints: dict[str, EpochKey] = field(default_factory=dict)
    pins: set[EpochKey] = field(default_factory=set)

    @property
    def branch(self) -> str:
        return self.branches[-1]


class World:
    def __init__(self, settings: Settings, compact_after: int) -> None:
        self.settings = settings
        settings.artifacts_directory.mkdir(parents=True)
        self.database = Database(settings.database_url)
        migrate_database(self.database)
        self.store = SnapshotStore(settings.store_url)
        self.policy = CompactionPolicy(epochs=compact_after, least_bytes=1 << 40)
        self.apps: list[App] = []
        self.expected: dict[EpochKey, Rows] = {}
        self.references: dict[EpochKey, ManifestReference] = {}
        self.parents: dict[str, EpochKey | None] = {}
        self.retains: dict[str, int] = {}
        """By branch: what the application is configured to retain that is, or was, on it."""
        self.committed: list[EpochKey] = []
        """In the order of their commits."""
        self.may_be_gone: set[EpochKey] = set()
        """Not to be kept when something was collected. Later they may be in reach again, by a fork that keeps more."""
        self.chance = random.Random(7)
        with self.database.writing() as session:
            session.add(Artifact(sha256=ARTIFACT, filename="x.py", bytes=len(CODE), created_at=now(), created_by="me"))
        keep(artifact_path(settings.artifacts_directory, ARTIFACT, "x.py"), CODE)

    def close(self) -> None:
        self.database.close()

    # What people and control planes do.

    def create(self, retained: int, parent: EpochKey | None = None, table: StateTable = COUNTS) -> App:
        """``parent``: a fork from there, with code that declares ``table``."""
        name = f"app-{len(self.apps)}"
        origin = BranchOrigin("start" if parent is None else "fork", parent)
        with self.database.writing() as session:
            if parent is not None:
                hold(session, parent)
            row = ApplicationRepository(session).add(name, origin, False, "me")
            configuration = ApplicationConfiguration(retained_epochs=retained)
            VersionRepository(session).add(row, 1, ARTIFACT, {}, configuration, None, "me")
            branch = row.branch
        app = App(name, retained, [branch], table)
        self.parents[branch], self.retains[branch] = parent, retained
        self.apps.append(app)
        return app

    def roll_back(self, app: App, to: EpochKey) -> None:
        self.stop(app)
        with self.database.writing() as session:
            hold(session, to)
            row = ApplicationRepository(session).named(app.name)
            branch = add_branch(session, row, BranchOrigin("rollback", to), "me")
            app.branches.append(branch.id)
        self.parents[app.branch], self.retains[app.branch] = to, app.retained

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
        position = Position.recovered(self.store, point.branch, point.next_epoch, point.head, [app.table])
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
        self._prepare(app, driver, self._open(driver), changes, EpochTerms())
        self._end_epoch(app, driver, commit)

    def reconfigure(
        self, app: App, table: StateTable, parallelism: int, changes: dict[int, int | None], ends: str
    ) -> None:
        """A version with other code or another parallelism, decided with its first epoch.

        ``ends``: ``committed``; ``prepared``, and the driver dies; or ``given up`` before it was decided.
        """
        driver = self.start(app)
        app.versions += 1
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            configuration = ApplicationConfiguration(retained_epochs=app.retained, parallelism=parallelism)
            VersionRepository(session).add(row, app.versions, ARTIFACT, {}, configuration, None, "me")
        key = self._open(driver)
        if ends == "given up":
            self._deltas(key, table, parallelism, changes)
            self.die(app)
            return
        app.table, app.parallelism = table, parallelism
        terms = EpochTerms(version=app.versions, changes=(Change(kind="upgrade"),))
        self._prepare(app, driver, key, changes, terms)
        self._end_epoch(app, driver, ends == "committed")

    def _open(self, driver: Driver) -> EpochKey:
        position = driver.position
        key = EpochKey(position.branch, position.next_epoch)
        driver.catalog.open_epoch(key.epoch, position.parent)
        position.next_epoch += 1
        return key

    def _prepare(
        self, app: App, driver: Driver, key: EpochKey, changes: dict[int, int | None], terms: EpochTerms
    ) -> None:
        self._deltas(key, app.table, app.parallelism, changes)
        position, parent, bases = driver.position, driver.position.parent, driver.bases.take()
        reference = self.store.write_manifest(
            Manifest(
                application=app.name,
                branch=key.branch,
                epoch=key.epoch,
                parent=position.head,
                execution=driver.catalog.execution,
                attempt=driver.catalog.attempt,
                artifact=ARTIFACT,
                parallelism=app.parallelism,
                max_parallelism=GROUPS,
                tables=(app.table,),
                deltas=self._deltas(key, app.table, app.parallelism, changes),
                bases=bases,
                source_checkpoints={"in": {}} if bases else {},
                created_at=datetime.now(UTC),
            )
        )
        driver.catalog.prepare_epoch(key.epoch, parent, reference, EpochCounts(), terms)
        manifest = self.store.read_manifest(reference)
        position.advance(manifest, reference)
        driver.bases.published(manifest)
        self.references[key] = reference
        self.expected[key] = self._after(app, self.expected[parent] if parent else {}, changes)

    def _end_epoch(self, app: App, driver: Driver, commit: bool) -> None:
        if not commit:
            self.die(app)
            return
        assert driver.position.head is not None
        self._commit(driver.catalog, driver.position.head.key)
        driver.compaction.consider(driver.position.head.epoch)

    def _after(self, app: App, before: Rows, changes: dict[int, int | None]) -> Rows:
        columns = app.table.value
        rows: Rows = {
            key: {column.name: row.get(column.name, column.default) for column in columns}
            for key, row in before.items()
            if changes.get(key, 0) is not None
        }
        return rows | {key: _row(app.table, value) for key, value in changes.items() if value is not None}

    def abort_epoch(self, app: App, decided: bool) -> None:
        """An epoch that leaves deltas, a log, a manifest and unfinished files, and perhaps no word to the catalog."""
        driver = self.start(app)
        key = self._open(driver)
        self._deltas(key, app.table, app.parallelism, {1: 1})
        for path in (layout.manifest(key, 1), layout.log_segment(key, 1, "out", 0), layout.base(key, "counts", 0, 7)):
            self.store.write(path, b"x")
            folder, _, name = path.rpartition("/")
            self.store.write(f"{folder}/.{name}.{uuid4().hex[:8]}{layout.TEMPORARY}", b"x")
        if decided:
            driver.catalog.abort_epoch(key.epoch, GONE)
        else:
            self.die(app)

    def _deltas(
        self, key: EpochKey, table: StateTable, parallelism: int, changes: dict[int, int | None]
    ) -> tuple[DeltaFile, ...]:
        numbers = sorted(changes)
        rows = pa.table({"key": pa.array(numbers, pa.int64())})
        groups = key_groups(rows, pa.schema([table.key_schema.field("key")]), GROUPS)
        for column in table.value:
            values = [_row(table, changes[number])[column.name] for number in numbers]
            rows = rows.append_column(column.name, pa.array(values, column.to_arrow().type))
        operations = ["delete" if changes[number] is None else "put" for number in numbers]
        rows = rows.append_column("_kg", pa.array(groups, pa.int32())).append_column("_op", pa.array(operations))
        written = []
        for subtask in range(parallelism):
            mine = rows.filter(pa.array(subtask_of(groups, parallelism) == subtask))
            if mine.num_rows:
                written.append(write_delta(self.store, sort_changes(table, mine), key, subtask, parallelism))
        return tuple(written)

    def _commit(self, catalog: SqlCatalog, key: EpochKey) -> None:
        catalog.commit_epoch(key.epoch)
        self.committed.append(key)

    # What the model says.

    def lineage(self, branch: str) -> list[EpochKey]:
        """The committed snapshots of a branch and of what it stands on, oldest first."""
        parent = self.parents[branch]
        known = parent is not None and parent.branch in self.parents  # else beyond what an import brought
        before = [key for key in self.lineage(parent.branch) if key.epoch <= parent.epoch] if known else []  # type: ignore[union-attr]
        return before + sorted(key for key in self.committed if key.branch == branch)

    def retained(self, app: App) -> set[EpochKey]:
        """By count, along the lineage; of branches that were left, what is as young as that."""
        lineage = self.lineage(app.branch)
        kept = lineage[-app.retained :]
        since = self.committed.index(kept[0]) if len(kept) == app.retained else 0
        gone = self.gone()
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
        gone = self.gone()
        for app in self.apps:
            if app.deleted:
                continue
            found |= self.retained(app) | set(app.savepoints.values()) | app.pins
            branch: str | None = app.branch
            while branch in self.parents:
                parent = self.parents[branch]
                found |= {parent} - gone if parent in self.references else set()
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

    def gone(self) -> set[EpochKey]:
        """What may have been collected, and was."""
        return self.may_be_gone & self.collected() if self.may_be_gone else set()

    def owned(self) -> set[str]:
        with self.database.reading() as session:
            return {row.id for row in session.query(Branch).filter(Branch.owned).all()}


def _row(table: StateTable, count: int | None) -> dict[str, Any]:
    """The note of every third row is null, which is not the default."""
    values = {"count": count, "note": None if count is None or count % 3 == 0 else count + 100}
    return {column.name: values[column.name] for column in table.value}
