"""The composed control plane or query node, as dependencies of endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import CursorKey
from epochal.service.domain.executions import Executions
from epochal.service.domain.ports import Builder, Component, Leadership, Supervisor
from epochal.service.domain.settings import Settings
from epochal.service.domain.snapshots import Snapshots
from epochal.service.queries.applications import ApplicationQueries, LoadService
from epochal.service.queries.executions import EpochService, ExecutionService
from epochal.service.queries.lifecycle import LifecycleHistory
from epochal.service.queries.lineage.service import LineageService
from epochal.service.queries.nodes import NodeService
from epochal.service.queries.snapshots import SnapshotService
from epochal.service.queries.standing_queries import StandingQueryDirectory
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.metrics import Metrics
from epochal.service.runtime.replicas.serving import ServedReplicas
from epochal.snapshots.lineage_bounds import LineageStore

if TYPE_CHECKING:  # query nodes load neither commands nor what commands build with
    from epochal.service.commands.administration import ProjectService, TokenService, WebhookService
    from epochal.service.commands.applications import ApplicationService, Lifecycle
    from epochal.service.commands.artifacts import ArtifactService
    from epochal.service.commands.autoscaling import AutoscalingService
    from epochal.service.commands.backups import BackupService
    from epochal.service.commands.bundles.exports import ExportService
    from epochal.service.commands.bundles.imports import ImportService
    from epochal.service.commands.calls import CallService
    from epochal.service.commands.collections import CollectionService
    from epochal.service.commands.fork import ForkService
    from epochal.service.commands.operations import CancelService
    from epochal.service.commands.preflight import PreflightService
    from epochal.service.commands.rekey import RekeyService
    from epochal.service.commands.rollback import RollbackService
    from epochal.service.commands.sessions import SessionService
    from epochal.service.commands.sinks import SinkService
    from epochal.service.commands.snapshots import AnnotationService, SavepointService
    from epochal.service.commands.standing_queries import QueryService
    from epochal.service.commands.transactions import TransactionService
    from epochal.service.commands.versions import VersionService
    from epochal.service.queries.administration import AdministrationQueries, ProjectQueries
    from epochal.service.queries.calls import Answers, EntryQueries
    from epochal.service.queries.logs import LogService
    from epochal.service.queries.operations import OperationService
    from epochal.service.queries.sessions import SessionQueries
    from epochal.service.queries.sources import SourceQueries
    from epochal.service.runtime.code_login import CodeLogin
    from epochal.service.runtime.drivers import DriverService
    from epochal.service.runtime.events.hub import EventHub
    from epochal.service.runtime.housekeeping import Housekeeping
    from epochal.service.runtime.isolation import Isolation
    from epochal.service.runtime.logs.keeping import LogKeeper
    from epochal.service.runtime.logs.rotator import LogRotator
    from epochal.service.runtime.nodes import NodeHeartbeat
    from epochal.service.runtime.operations import OperationWorker
    from epochal.service.runtime.stored_files import StoredFiles
    from epochal.service.runtime.webhooks import WebhookDeliveries


@dataclass(frozen=True)
class QueryNode:
    """Services for look-ups and related lists. Query nodes have these; control planes have more."""

    settings: Settings
    database: Database
    store: LineageStore
    authenticator: Authenticator
    cursor_key: CursorKey
    metrics: Metrics

    snapshots: Snapshots
    replicas: ServedReplicas

    registered: ApplicationQueries
    executions: ExecutionService
    lifecycle_history: LifecycleHistory
    nodes: NodeService
    load: LoadService
    epochs: EpochService
    manifests: SnapshotService
    lineage: LineageService
    standing_queries: StandingQueryDirectory


@dataclass(frozen=True)
class ControlPlane(QueryNode):
    """Services of a control plane: infrastructure, components, and one service per resource."""

    supervision: Database
    drivers: DriverService | None
    """``None``: another process answers drivers."""
    files: StoredFiles
    isolation: Isolation

    ledger: Executions
    events: EventHub
    builder: Builder
    leadership: Leadership
    housekeeping: Housekeeping
    supervisor: Supervisor
    node: NodeHeartbeat

    artifacts: ArtifactService
    sources: SourceQueries
    applications: ApplicationService
    forks: ForkService
    lifecycle: Lifecycle
    rollback: RollbackService
    worker: OperationWorker
    exports: ExportService
    imports: ImportService
    versions: VersionService
    autoscaling: AutoscalingService
    preflight: PreflightService
    rekeys: RekeyService
    operations: OperationService
    calls: CallService
    entries: EntryQueries
    answers: Answers
    cancellation: CancelService
    savepoints: SavepointService
    transactions: TransactionService
    sinks: SinkService
    queries: QueryService
    annotations: AnnotationService
    collections: CollectionService
    backups: BackupService
    projects: ProjectService
    known_projects: ProjectQueries
    tokens: TokenService
    sessions: SessionService
    listed_sessions: SessionQueries
    code_login: CodeLogin | None
    """``None``: no identity provider with a client for browsers is configured."""
    administration: AdministrationQueries
    driver_logs: LogService
    log_rotator: LogRotator
    log_keeper: LogKeeper
    webhooks: WebhookService
    deliveries: WebhookDeliveries

    @property
    def components(self) -> tuple[Component, ...]:
        """Components in the order in which they are opened; they are closed in reverse."""
        return (
            self.events,
            self.builder,
            self.replicas,
            self.node,
            self.leadership,
            self.supervisor,
            self.worker,
            self.deliveries,
            self.housekeeping,
            self.log_rotator,
            self.log_keeper,
        )


def query_node(connection: HTTPConnection) -> QueryNode:
    """The control plane or query node that answers this request."""
    node: QueryNode = connection.app.state.control_plane
    return node


async def _query_node(connection: HTTPConnection) -> QueryNode:
    return query_node(connection)


Node = Annotated[QueryNode, Depends(_query_node)]


def control_plane(connection: HTTPConnection) -> ControlPlane:
    """The control plane that answers this request."""
    control: ControlPlane = connection.app.state.control_plane
    return control


async def _control_plane(connection: HTTPConnection) -> ControlPlane:
    # FastAPI runs a dependency that is not a coroutine in a thread, and waits when all threads are busy.
    return control_plane(connection)


Control = Annotated[ControlPlane, Depends(_control_plane)]
