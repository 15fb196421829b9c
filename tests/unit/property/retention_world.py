"""A catalog and a store as control planes and drivers leave them, without Spark and HTTP, with a plain model.

The catalog, its guarded writes, the store, deltas, manifests, compaction and collection are real; this module takes
the place of drivers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from epochal.contracts.catalog import Change, EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.engine.compaction import Compaction
from epochal.engine.position import PendingBases, Position
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import BranchOrigin, add_branch, begin_attempt, begin_execution, end_attempt
from epochal.service.catalog.folding import hold
from epochal.service.catalog.lineage_bounds import CatalogLineages
from epochal.service.catalog.models import Branch, Epoch, Execution, Savepoint, SnapshotPin
from epochal.service.catalog.operation_completion import execution_over
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.artifacts import ArtifactService
from epochal.service.commands.collections import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots import layout
from epochal.snapshots.collection import WaitingLimit
from epochal.snapshots.lineage import history, read_chains
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.state.table import StateTable
from epochal.testing.state_world import SMALL_CELLS
from epochal.wire.configuration import ApplicationConfiguration
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.manifests import plain_manifest
from tests.kit.packed_files import EpochFiles
from tests.kit.programs import current_program
from tests.unit.property.counting import COUNTS, GROUPS, Changes, rows_after, write_changes
from tests.unit.property.retention_model import App, Model

CODE = b"pipeline = ..."
ARTIFACT = hashlib.sha256(CODE).hexdigest()
LOST = Failure(type="driver-lost", message="it was killed")


@dataclass
class Driver:
    """State of one attempt, which ends when a fault fires in it."""

    catalog: SqlCatalog
    position: Position
    bases: PendingBases
    compaction: Compaction


class World:
    """``is_small``: decides for each file whether it is in the pack of its epoch. ``has_new_queries``: decides for each
    epoch whether it has new standing queries; otherwise it has those of its parent, if any."""

    def __init__(
        self,
        settings: Settings,
        compact_after: int,
        is_small: Callable[[], bool] = lambda: False,
        has_new_queries: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_small, self._has_new_queries = is_small, has_new_queries
        self.settings = settings
        settings.artifact_cache_directory.mkdir(parents=True)
        self.database = Database(new_sqlite_catalog(settings.data / "catalog.sqlite"))
        self.store = LineageStore(settings.store_url, CatalogLineages(self.database))
        compacting = ApplicationConfiguration(compact_after_epochs=compact_after, compact_after_bytes=1 << 40)
        self.program = current_program(compacting)
        self.model = Model(self.collected)
        self._drivers: dict[str, Driver] = {}
        self.files = StoredFiles(self.database, self.store)
        self.code = ArtifactCache(settings.artifact_cache_directory, self.files)
        ArtifactService(settings, self.database, self.files).register("x.py", CODE, "default", "me")

    def close(self) -> None:
        self.database.close()

    # Actions of people and control planes.

    def create(self, retained: int, parent: EpochKey | None = None, table: StateTable = COUNTS) -> App:
        """``parent``: creates a fork of this snapshot, with code that declares ``table``."""
        name = f"app-{len(self.model.apps)}"
        origin = BranchOrigin("start" if parent is None else "fork", parent)
        with self.database.writing() as session:
            if parent is not None:
                hold(session, parent)
            row = ApplicationRepository(session).add(name, origin, False, "me")
            configuration = ApplicationConfiguration(retained_epochs=retained)
            VersionRepository(session).add(row, 1, ARTIFACT, {}, configuration, None, "me")
            branch = row.branch
        return self.model.add(App(name, retained, [branch], table), parent)

    def roll_back(self, app: App, to: EpochKey) -> None:
        self.stop(app)
        with self.database.writing() as session:
            hold(session, to)
            row = ApplicationRepository(session).named(app.name)
            branch = add_branch(session, row, BranchOrigin("rollback", to), "me")
        self.model.branch_off(app, branch.id, to)

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
            common = {"application": row.id, "created_at": now(), "created_by": "me"}
            session.merge(SnapshotPin(branch=key.branch, epoch=key.epoch, **common))
        for other in self.model.apps:
            other.pins.discard(key)
        app.pins.add(key)

    def unpin(self, app: App, key: EpochKey) -> None:
        with self.database.writing() as session:
            session.delete(session.get_one(SnapshotPin, (key.branch, key.epoch)))
        app.pins.discard(key)

    def collect(
        self,
        grace: timedelta = timedelta(0),
        later: timedelta = timedelta(seconds=1),
        limit: WaitingLimit | None = None,
    ) -> None:
        """Collects with the control plane's clock ahead by ``later``."""
        self.model.collecting()
        clock = lambda: now() + later  # noqa: E731
        Collection(self.database, self.store, clock).run(CollectionRequest(grace, limit=limit))

    # Actions of drivers.

    def start(self, app: App) -> Driver:
        """Returns the running driver, or begins the next attempt, which fences the previous one."""
        if app.name in self._drivers:
            return self._drivers[app.name]
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            execution = session.get(Execution, row.execution) if row.execution else None
            if execution is None or execution.state in ("stopped", "failed"):
                execution = begin_execution(session, row)
            attempt = begin_attempt(session, execution, None)
            catalog = SqlCatalog(self.database, execution.id, attempt.number)
        point = catalog.begin_attempt()
        for record in point.started:
            catalog.abort_epoch(record.epoch, LOST)
        for record in point.prepared:
            self._commit(catalog, record.key)
        position = Position.recovered(self.store, point.branch, point.next_epoch, point.head, [app.table])
        bases = PendingBases()
        driver = Driver(
            catalog, position, bases, Compaction(self.store, position, bases, self.program, sizes=SMALL_CELLS)
        )
        self._drivers[app.name] = driver
        return driver

    def die(self, app: App) -> None:
        """Ends the driver; the control plane records it as lost."""
        driver = self._drivers.pop(app.name, None)
        if driver is not None:
            with self.database.writing() as session:
                execution = session.get_one(Execution, driver.catalog.execution)
                end_attempt(session, execution, driver.catalog.attempt, "lost", LOST)

    def stop(self, app: App) -> None:
        """Stops in order: all decided epochs are committed. R4 does not sweep; collections find the remaining files."""
        self.start(app)
        self.die(app)
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            execution_over(session, session.get_one(Execution, row.execution or ""), "stopped", None)

    def run_epoch(self, app: App, changes: Changes, commit: bool = True) -> None:
        """One epoch; ``None`` deletes a key. Deltas of a losing task are also in the store."""
        driver = self.start(app)
        self._prepare(app, driver, self._open(driver), changes, EpochTerms())
        self._end_epoch(app, driver, commit)

    def reconfigure(self, app: App, table: StateTable, parallelism: int, changes: Changes, ends: str) -> None:
        """A version with other code or another parallelism, decided with its first epoch.

        ``ends``: ``committed``; ``prepared``, and the driver dies; or ``given up`` before the decision.
        """
        driver = self.start(app)
        app.versions += 1
        with self.database.writing() as session:
            row = ApplicationRepository(session).named(app.name)
            configuration = ApplicationConfiguration(retained_epochs=app.retained, parallelism=parallelism)
            VersionRepository(session).add(row, app.versions, ARTIFACT, {}, configuration, None, "me")
        key = self._open(driver)
        if ends == "given up":
            write_changes(self.store, key, table, parallelism, changes)
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

    def _prepare(self, app: App, driver: Driver, key: EpochKey, changes: Changes, terms: EpochTerms) -> None:
        write_changes(self.store, key, app.table, app.parallelism, changes)
        files = EpochFiles(self.store, self._is_small)
        position, parent, bases = driver.position, driver.position.parent, driver.bases.take()
        reference = files.write_manifest(
            plain_manifest(
                key.epoch,
                application=app.name,
                branch=key.branch,
                parent=position.head,
                execution=driver.catalog.execution,
                attempt=driver.catalog.attempt,
                artifact=ARTIFACT,
                parallelism=app.parallelism,
                max_parallelism=GROUPS,
                tables=(app.table,),
                deltas=write_changes(files, key, app.table, app.parallelism, changes),
                bases=bases,
                source_checkpoints={"in": {}} if bases else {},
                conditions=EpochConditions(clock=Clock(epoch_time=0), queries=self._queries(files, key, position.head)),
            )
        )
        driver.catalog.prepare_epoch(key.epoch, parent, reference, EpochCounts(), terms)
        manifest = self.store.read_manifest(reference)
        position.advance(manifest, reference)
        driver.bases.published(manifest)
        model = self.model
        model.references[key] = reference
        model.expected[key] = rows_after(app.table, model.expected[parent] if parent else {}, changes)

    def _queries(self, files: EpochFiles, key: EpochKey, parent: ManifestReference | None) -> EpochQueries | None:
        if self._has_new_queries():
            written = files.write_file(layout.standing_queries(key), f"queries of {key}".encode(), 1)
            return EpochQueries(**written.model_dump(), through=key.epoch)
        return None if parent is None else self.store.read_manifest(parent).conditions.queries

    def _end_epoch(self, app: App, driver: Driver, commit: bool) -> None:
        if not commit:
            self.die(app)
            return
        assert driver.position.head is not None
        self._commit(driver.catalog, driver.position.head.key)
        driver.compaction.consider(driver.position.head.epoch)

    def abort_epoch(self, app: App, decided: bool) -> None:
        """Leaves deltas, a log, a manifest and unfinished files. ``decided``: the catalog records the abort."""
        driver = self.start(app)
        key = self._open(driver)
        write_changes(self.store, key, app.table, app.parallelism, {1: 1})
        for path in (
            layout.manifest(key, 1),
            layout.log_segment(key, 1, "out", 0),
            layout.base(key, "counts", range(8)),
        ):
            self.store.write(path, b"x")
            folder, _, name = path.rpartition("/")
            self.store.write(f"{folder}/.{name}.{uuid4().hex[:8]}{layout.TEMPORARY}", b"x")
        if decided:
            driver.catalog.abort_epoch(key.epoch, LOST)
        else:
            self.die(app)

    def _commit(self, catalog: SqlCatalog, key: EpochKey) -> None:
        catalog.commit_epoch(key.epoch)
        self.model.committed.append(key)

    def needed(self, key: EpochKey) -> Iterator[str]:
        """Files of a snapshot that readers and recovery need."""
        reference = self.model.references[key]
        chain = read_chains(self.store, reference, [COUNTS.id])[COUNTS.id]
        yield from (base.file.path for base in chain.bases)
        yield from (delta.file.stored_in for link in chain.links for delta in link.deltas)
        current: ManifestReference | None = reference
        for manifest in history(self.store, reference):
            assert current is not None
            yield current.path
            if manifest.key == chain.base_at:
                return
            current = manifest.parent

    def pending(self) -> set[str]:
        """Bases that a running driver may still name."""
        return {base.file.path for driver in self._drivers.values() for base in driver.bases.take()}

    def collected(self) -> set[EpochKey]:
        with self.database.reading() as session:
            rows = session.query(Epoch).filter(Epoch.collected_at.is_not(None)).all()
            return {EpochKey(row.branch, row.epoch) for row in rows}

    def owned(self) -> set[str]:
        with self.database.reading() as session:
            return {row.id for row in session.query(Branch).filter(Branch.owned).all()}
