"""Putting a control plane together from its settings and the factories of its components."""

from __future__ import annotations

from epochal.service.annotations.service import AnnotationService
from epochal.service.applications.forks import ForkService
from epochal.service.applications.lifecycle import Lifecycle
from epochal.service.applications.service import ApplicationService
from epochal.service.artifacts.service import ArtifactService
from epochal.service.audit.service import AuditService
from epochal.service.builder.pool import BoundedBuilder
from epochal.service.bulkhead import Bulkhead
from epochal.service.bundles.exports import ExportService
from epochal.service.bundles.imports import ImportService
from epochal.service.bundles.uploads import Uploads
from epochal.service.bundles.work import BundleWork
from epochal.service.catalog.database import Database
from epochal.service.context import ControlPlane
from epochal.service.epochs.service import EpochService
from epochal.service.executions.ledger import ExecutionLedger
from epochal.service.executions.service import ExecutionService
from epochal.service.health.metrics import Metrics
from epochal.service.internal.service import DriverService
from epochal.service.lineage.service import LineageService
from epochal.service.operations.service import OperationService
from epochal.service.ports import ControlEvent, EventSink, PortFactories, Surroundings
from epochal.service.preflight.check import Check
from epochal.service.preflight.service import PreflightService
from epochal.service.rekey.rekeying import Rekeying
from epochal.service.rekey.service import RekeyService
from epochal.service.retention.service import CollectionService
from epochal.service.rollback.service import RollbackService
from epochal.service.savepoints.service import SavepointService
from epochal.service.security.admin import AdminTokenFile
from epochal.service.security.authenticator import Authenticator
from epochal.service.security.isolation import isolation_of
from epochal.service.settings import Settings
from epochal.service.snapshots.service import SnapshotDirectory, SnapshotService
from epochal.service.tokens.service import TokenService
from epochal.service.transactions.service import TransactionService
from epochal.service.versions.proposals import Proposals
from epochal.service.versions.service import VersionService
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
