"""Composition of a control plane from its settings.

Each part receives the parts that it uses, which are created before it. Builder and supervisor can be replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from epochal.contracts.registry import LAUNCHERS, find
from epochal.service.api.context import ControlPlane
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import CursorKey
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.catalog.lineage_bounds import CatalogLineages
from epochal.service.catalog.tokens import AdminTokenFile
from epochal.service.commands.administration import ProjectService, TokenService, WebhookService
from epochal.service.commands.applications import ApplicationService, Lifecycle
from epochal.service.commands.artifacts import ArtifactService
from epochal.service.commands.autoscaling import AutoscalingService
from epochal.service.commands.backups import BackupService
from epochal.service.commands.bundles.exports import ExportService
from epochal.service.commands.bundles.imports import ImportService
from epochal.service.commands.bundles.uploads import Uploads
from epochal.service.commands.bundles.work import BundleWork
from epochal.service.commands.calls import CallService
from epochal.service.commands.collections import CollectionService
from epochal.service.commands.fork import ForkService
from epochal.service.commands.operations import CancelService
from epochal.service.commands.preflight import PreflightService
from epochal.service.commands.proposals import Proposals
from epochal.service.commands.rekey import RekeyService
from epochal.service.commands.rollback import RollbackService
from epochal.service.commands.sessions import SessionService
from epochal.service.commands.sinks import SinkService
from epochal.service.commands.snapshots import AnnotationService, SavepointService
from epochal.service.commands.standing_queries import QueryService
from epochal.service.commands.transactions import TransactionService
from epochal.service.commands.versions import VersionService
from epochal.service.domain.events import EXECUTION, OPERATION
from epochal.service.domain.executions import Executions
from epochal.service.domain.ports import Builder, Leadership, Supervisor
from epochal.service.domain.settings import IN_PODS, Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.queries.administration import AdministrationQueries, ProjectQueries
from epochal.service.queries.applications import ApplicationQueries, LoadService
from epochal.service.queries.calls import Answers, EntryQueries
from epochal.service.queries.executions import EpochService, ExecutionService
from epochal.service.queries.lifecycle import LifecycleHistory
from epochal.service.queries.lineage.service import LineageService
from epochal.service.queries.logs import LogService
from epochal.service.queries.nodes import NodeService
from epochal.service.queries.operations import OperationService
from epochal.service.queries.sessions import SessionQueries
from epochal.service.queries.snapshots import SnapshotDirectory, SnapshotService
from epochal.service.queries.sources import SourceQueries
from epochal.service.queries.standing_queries import StandingQueryDirectory
from epochal.service.queries.state.lookups import Lookups
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.builder.pool import BoundedBuilder
from epochal.service.runtime.builder.subprocess_builder import SubprocessBuilder
from epochal.service.runtime.drivers import DriverService
from epochal.service.runtime.events.hints import hints_of
from epochal.service.runtime.events.hub import EventHub
from epochal.service.runtime.expiry import EXPIRY_SECONDS, CatalogExpiry
from epochal.service.runtime.housekeeping import Housekeeping
from epochal.service.runtime.isolation import ProcessUser, isolation_of
from epochal.service.runtime.launchers.base import Launcher
from epochal.service.runtime.leadership import leadership_of
from epochal.service.runtime.logs.keeping import LogKeeper
from epochal.service.runtime.logs.rotator import LogRotator
from epochal.service.runtime.metrics import Metrics, Node
from epochal.service.runtime.nodes import NodeHeartbeat, this_node
from epochal.service.runtime.operations import OperationWorker
from epochal.service.runtime.replicas.lag import ReplicaLags
from epochal.service.runtime.replicas.replicas import Replicas
from epochal.service.runtime.standing_queries import StandingQueriesInForce
from epochal.service.runtime.stored_files import StoredFiles
from epochal.service.runtime.supervision.supervisor import ThreadedSupervisor
from epochal.service.runtime.webhooks import WebhookDeliveries
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.store_variables import variables_for_store

if TYPE_CHECKING:
    from epochal.service.runtime.code_login import CodeLogin

MakeBuilder = Callable[[Settings, ProcessUser | None], Builder]
"""The user runs authors' code; ``None``: the control plane's own user."""
MakeSupervisor = Callable[[Settings, ProcessUser | None, Executions, Leadership], Supervisor]


def compose(settings: Settings, make_builder: MakeBuilder, make_supervisor: MakeSupervisor) -> ControlPlane:
    """Compose without opening anything or connecting: see ``create_app``."""
    pools = settings.pools
    database = Database(settings.database_url, pools.requests)
    supervision = Database(settings.database_url, pools.supervision, urgent=True)
    store = LineageStore(settings.store_url, CatalogLineages(database))
    files = StoredFiles(database, store)
    code = ArtifactCache(settings.artifact_cache_directory, files)
    authenticator = Authenticator(database, settings.authentication, settings.oidc, settings.sessions)
    isolation = isolation_of(settings)
    events = EventHub(database, hints_of(settings.database_url, settings.data.absolute()))
    for writer in (database, supervision):
        writer.listen(events.committed)
    ledger = ExecutionLedger(supervision)
    directory = SnapshotDirectory(database)
    limits = settings.limits
    builder = BoundedBuilder(make_builder(settings, isolation.user), limits.builds, limits.builds_waiting)
    replicas = Replicas(settings.replicas_directory, store, directory, events, most_bytes=settings.replica_bytes)
    leadership = leadership_of(settings)
    housekeeping = Housekeeping(leadership)
    expiry = CatalogExpiry(database, settings.kept, settings.sessions)
    housekeeping.register("expiry of events", EXPIRY_SECONDS, expiry.expire_events)
    housekeeping.register("expiry of calls", EXPIRY_SECONDS, expiry.expire_calls)
    housekeeping.register("expiry of the audit log", EXPIRY_SECONDS, expiry.expire_audit)
    housekeeping.register("expiry of sessions", EXPIRY_SECONDS, expiry.expire_sessions)
    housekeeping.register("expiry of session links", EXPIRY_SECONDS, expiry.expire_session_links)
    supervisor = make_supervisor(settings, isolation.user, ledger, leadership)
    events.listen_to_others(lambda topics: supervisor.wake() if topics & {EXECUTION, OPERATION} else None)
    lifecycle = Lifecycle(database, supervisor)
    artifacts = ArtifactService(settings, database, files)
    uploads = Uploads(settings, database, files)
    executions = ExecutionService(database)
    node = this_node(settings, "control")
    worker = OperationWorker(database, node=node)
    events.listen(worker.heard)
    BundleWork(settings, database, store, files, code, uploads, lifecycle, worker)
    proposals = Proposals(settings, builder, store, code)
    versions = VersionService(database, proposals, lifecycle)
    in_force = StandingQueriesInForce(database, store)
    drivers: DriverService | None = None
    if settings.internal_port is None:
        drivers = DriverService(settings, events.committed, supervisor.wake)
        events.listen(drivers.heard)
    return ControlPlane(
        settings=settings,
        database=database,
        supervision=supervision,
        drivers=drivers,
        store=store,
        files=files,
        authenticator=authenticator,
        cursor_key=CursorKey(database),
        isolation=isolation,
        metrics=Metrics(
            database,
            Node(
                term=lambda: None if (leading := leadership.leading()) is None else leading.term,
                builds=lambda: builder.builds,
                replicas=ReplicaLags(database, replicas),
                spares=lambda: supervisor.spares,
                warm_builders=lambda: builder.spares,
                pools={"requests": database, "supervision": supervision},
            ),
        ),
        ledger=ledger,
        snapshots=directory,
        events=events,
        builder=builder,
        replicas=replicas,
        leadership=leadership,
        housekeeping=housekeeping,
        supervisor=supervisor,
        node=NodeHeartbeat(supervision, node),
        artifacts=artifacts,
        sources=SourceQueries(database, code),
        applications=ApplicationService(settings, database, builder, code, lifecycle),
        forks=ForkService(database, builder, proposals, lifecycle),
        lifecycle=lifecycle,
        rollback=RollbackService(database, store, proposals, lifecycle),
        worker=worker,
        exports=ExportService(database, files, worker),
        imports=ImportService(settings, database, store, builder, code, uploads, worker),
        versions=versions,
        autoscaling=AutoscalingService(database, versions, housekeeping),
        preflight=PreflightService(database, proposals, store, worker),
        rekeys=RekeyService(settings, database, builder, code, store, worker),
        operations=OperationService(database),
        calls=CallService(database, limits, events.tell),
        entries=EntryQueries(database),
        answers=Answers(database, replicas, Lookups(replicas, directory)),
        nodes=NodeService(database),
        lifecycle_history=LifecycleHistory(database),
        load=LoadService(database),
        cancellation=CancelService(database, worker),
        executions=executions,
        epochs=EpochService(database, store),
        savepoints=SavepointService(database, lifecycle),
        transactions=TransactionService(database, lifecycle, store),
        sinks=SinkService(database, lifecycle),
        queries=QueryService(database, lifecycle, in_force),
        standing_queries=StandingQueryDirectory(in_force),
        manifests=SnapshotService(database, directory, store),
        annotations=AnnotationService(database),
        collections=CollectionService(settings, database, store, files, artifacts, worker, housekeeping),
        backups=BackupService(settings, database, store, worker),
        lineage=LineageService(database, store),
        projects=ProjectService(database, authenticator),
        known_projects=ProjectQueries(database),
        tokens=TokenService(database, authenticator, AdminTokenFile(settings.admin_token_file)),
        sessions=SessionService(database, authenticator.sessions, settings.sessions),
        listed_sessions=SessionQueries(database, settings.sessions),
        code_login=_code_login(settings),
        registered=ApplicationQueries(database),
        administration=AdministrationQueries(database),
        driver_logs=LogService(settings, database, files, executions, supervisor.bring_log),
        log_rotator=LogRotator(settings.logs_directory, settings.log_bytes, settings.log_files),
        log_keeper=LogKeeper(settings.logs_directory, database, files, timedelta(days=settings.log_days)),
        webhooks=WebhookService(settings, database),
        deliveries=WebhookDeliveries(database, events, settings.webhooks_local),
    )


def _code_login(settings: Settings) -> CodeLogin | None:
    oidc = settings.oidc
    if oidc is None or oidc.client is None or not settings.authentication:
        return None
    # Load the signature library only where it is needed.
    from epochal.service.runtime.code_login import CodeLogin

    return CodeLogin(oidc, oidc.client, f"{settings.public_url.rstrip('/')}/v1/session/callback")


def subprocess_builder(settings: Settings, user: ProcessUser | None) -> SubprocessBuilder:
    """Builder that runs in subprocesses, as ``user``."""
    variables = variables_for_store(os.environ, settings.store_url)
    return SubprocessBuilder(user, settings.home_directory, settings.warm_drivers or 0, variables=variables)


def own_builder(settings: Settings, user: ProcessUser | None) -> Builder:
    """Builder that runs where drivers do: in pods, or in subprocesses as ``user``."""
    if settings.kubernetes is None or settings.launcher != IN_PODS:
        return subprocess_builder(settings, user)
    # Imported here: it requires the extra ``kubernetes``.
    from epochal.service.runtime.builder.kubernetes_builder import KubernetesBuilder

    return KubernetesBuilder.of(settings)


def threaded_supervisor(
    settings: Settings,
    user: ProcessUser | None,
    executions: Executions,
    leadership: Leadership,
    can_answer: Callable[[], bool] = lambda: True,
) -> ThreadedSupervisor:
    """Supervisor that runs in a thread and launches drivers with the configured launcher, as ``user``. ``can_answer``:
    whether drivers can be answered now."""
    kind: type[Launcher] = find(LAUNCHERS, settings.launcher)
    launcher = kind.of(settings)
    if user is not None:
        launcher.run_as(user, settings.home_directory)
    spares = settings.warm_drivers or 0 if settings.kubernetes is None else settings.kubernetes.spare_drivers
    if spares:
        launcher.keep_spares(spares, settings.spares_directory)
        launcher.keep_spares_while(lambda: leadership.leading() is not None)
    supervision = SupervisionSettings()
    if settings.kubernetes is not None:
        # In a pod, the start of a driver includes waiting for a node and an image.
        supervision = SupervisionSettings(start_seconds=settings.kubernetes.start_seconds)
    return ThreadedSupervisor(settings, executions, launcher, leadership, supervision, can_answer)
