"""Putting a control plane together from its settings and the factories of its components."""

from __future__ import annotations

from epochal.service.api.context import ControlPlane
from epochal.service.catalog.admin_tokens import AdminTokenFile
from epochal.service.catalog.bulkhead import Bulkhead
from epochal.service.catalog.database import Database
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.commands.annotations import AnnotationService
from epochal.service.commands.applications import ApplicationService
from epochal.service.commands.artifacts import ArtifactService
from epochal.service.commands.bundles.exports import ExportService
from epochal.service.commands.bundles.imports import ImportService
from epochal.service.commands.bundles.uploads import Uploads
from epochal.service.commands.bundles.work import BundleWork
from epochal.service.commands.collections import CollectionService
from epochal.service.commands.fork import ForkService
from epochal.service.commands.lifecycle import Lifecycle
from epochal.service.commands.preflight import PreflightService
from epochal.service.commands.preflight_check import Check
from epochal.service.commands.proposals import Proposals
from epochal.service.commands.rekey import RekeyService
from epochal.service.commands.rekeying import Rekeying
from epochal.service.commands.rollback import RollbackService
from epochal.service.commands.savepoints import SavepointService
from epochal.service.commands.tokens import TokenService
from epochal.service.commands.transactions import TransactionService
from epochal.service.commands.versions import VersionService
from epochal.service.domain.isolation import isolation_of
from epochal.service.domain.ports import ControlEvent, EventSink, PortFactories, Surroundings
from epochal.service.domain.settings import Settings
from epochal.service.queries.audit import AuditService
from epochal.service.queries.epochs import EpochService
from epochal.service.queries.executions import ExecutionService
from epochal.service.queries.lineage.service import LineageService
from epochal.service.queries.operations import OperationService
from epochal.service.queries.snapshots import SnapshotDirectory, SnapshotService
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.builder.pool import BoundedBuilder
from epochal.service.runtime.drivers import DriverService
from epochal.service.runtime.metrics import Metrics
from epochal.snapshots.store import SnapshotStore


def compose(settings: Settings, ports: PortFactories) -> ControlPlane:
    """Nothing is opened, no connection made: see ``create_app``."""
    database = Database(settings.database_url)
    store = SnapshotStore(settings.store_url)
    bulkhead = Bulkhead(settings.database_url)
    authenticator = Authenticator(database, bulkhead, settings.authentication)
    directory = SnapshotDirectory(database)
    forwarding = _Forwarding()
    ledger = ExecutionLedger(settings, bulkhead.database, forwarding)
    isolation = isolation_of(settings)
    surroundings = Surroundings(settings, ledger, directory, isolation.user)
    events = forwarding.sink = ports.events(surroundings)
    limits = settings.limits
    builder = BoundedBuilder(ports.builder(surroundings), limits.builds, limits.builds_waiting)
    replicas = ports.replicas(surroundings, events)
    supervisor = ports.supervisor(surroundings, events)
    lifecycle = Lifecycle(database, events, supervisor)
    uploads = Uploads(settings)
    bundles = BundleWork(settings, database, store, uploads, lifecycle).worker(events)
    proposals = Proposals(settings, builder, store)
    return ControlPlane(
        settings=settings,
        database=database,
        bulkhead=bulkhead,
        store=store,
        authenticator=authenticator,
        isolation=isolation,
        metrics=Metrics(database),
        ledger=ledger,
        snapshots=directory,
        events=events,
        builder=builder,
        replicas=replicas,
        supervisor=supervisor,
        artifacts=ArtifactService(settings, database),
        applications=ApplicationService(settings, database, builder, lifecycle),
        forks=ForkService(database, builder, proposals, lifecycle),
        lifecycle=lifecycle,
        rollback=RollbackService(database, store, lifecycle),
        bundles=bundles,
        exports=ExportService(settings, database, bundles),
        imports=ImportService(settings, database, builder, uploads, bundles),
        versions=VersionService(database, proposals, lifecycle),
        preflight=PreflightService(database, Check(database, proposals), events),
        rekeys=RekeyService(database, Rekeying(settings, database, builder, store, events), events),
        operations=OperationService(database),
        executions=ExecutionService(database),
        epochs=EpochService(database),
        savepoints=SavepointService(database, lifecycle),
        transactions=TransactionService(database, lifecycle, store),
        manifests=SnapshotService(database, directory, store),
        annotations=AnnotationService(database),
        collections=CollectionService(settings, database, store),
        lineage=LineageService(database, store),
        tokens=TokenService(database, authenticator, AdminTokenFile(settings.admin_token_file)),
        audit=AuditService(database),
        drivers=DriverService(bulkhead, events, supervisor),
    )


class _Forwarding:
    """The ledger publishes to the event sink, whose factory may look at the ledger: one has to come first."""

    sink: EventSink

    def publish(self, event: ControlEvent) -> None:
        self.sink.publish(event)

    def open(self) -> None:
        """The sink itself is opened."""

    def close(self) -> None:
        """The sink itself is closed."""
