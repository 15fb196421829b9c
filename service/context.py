"""The composed control plane, as endpoints reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from epochal.service.annotations.service import AnnotationService
from epochal.service.applications.forks import ForkService
from epochal.service.applications.lifecycle import Lifecycle
from epochal.service.applications.service import ApplicationService
from epochal.service.artifacts.service import ArtifactService
from epochal.service.audit.service import AuditService
from epochal.service.bulkhead import Bulkhead
from epochal.service.bundles.exports import ExportService
from epochal.service.bundles.imports import ImportService
from epochal.service.catalog.database import Database
from epochal.service.epochs.service import EpochService
from epochal.service.executions.service import ExecutionService
from epochal.service.health.metrics import Metrics
from epochal.service.internal.service import DriverService
from epochal.service.lineage.service import LineageService
from epochal.service.operations.service import OperationService
from epochal.service.operations.worker import OperationWorker
from epochal.service.ports import Builder, Component, EventSink, Executions, Snapshots, Supervisor
from epochal.service.preflight.service import PreflightService
from epochal.service.rekey.service import RekeyService
from epochal.service.retention.service import CollectionService
from epochal.service.rollback.service import RollbackService
from epochal.service.savepoints.service import SavepointService
from epochal.service.security.authenticator import Authenticator
from epochal.service.security.isolation import Isolation
from epochal.service.settings import Settings
from epochal.service.snapshots.service import SnapshotService
from epochal.service.tokens.service import TokenService
from epochal.service.transactions.service import TransactionService
from epochal.service.versions.service import VersionService
from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True)
class ControlPlane:
    """What a control plane consists of: surroundings, components, and one service per resource."""

    settings: Settings
    database: Database
    bulkhead: Bulkhead
    store: SnapshotStore
    authenticator: Authenticator
    isolation: Isolation
    metrics: Metrics

    ledger: Executions
    snapshots: Snapshots
    events: EventSink
    builder: Builder
    replicas: Component
    supervisor: Supervisor

    artifacts: ArtifactService
    applications: ApplicationService
    forks: ForkService
    lifecycle: Lifecycle
    rollback: RollbackService
    bundles: OperationWorker
    exports: ExportService
    imports: ImportService
    versions: VersionService
    preflight: PreflightService
    rekeys: RekeyService
    operations: OperationService
    executions: ExecutionService
    epochs: EpochService
    savepoints: SavepointService
    transactions: TransactionService
    manifests: SnapshotService
    annotations: AnnotationService
    collections: CollectionService
    lineage: LineageService
    tokens: TokenService
    audit: AuditService
    drivers: DriverService

    @property
    def components(self) -> tuple[Component, ...]:
        """In the order in which they are opened."""
        return (
            self.events,
            self.builder,
            self.replicas,
            self.supervisor,
            self.bundles,
            self.preflight.worker,
            self.rekeys.worker,
            self.collections.worker,
        )


def control_plane(connection: HTTPConnection) -> ControlPlane:
    """The control plane that answers this request."""
    control = connection.app.state.control_plane
    assert isinstance(control, ControlPlane)  # the app factory has put it there
    return control


async def _control_plane(connection: HTTPConnection) -> ControlPlane:
    # FastAPI takes a thread for a dependency that is no coroutine, and waits for one when all are taken.
    return control_plane(connection)


Control = Annotated[ControlPlane, Depends(_control_plane)]
