"""Forks: a new application on a snapshot of another. No byte of state is copied: its branch begins at the parent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict, InvalidInput
from epochal.pipeline.description import GraphDescription, names_place
from epochal.service.applications.configuration import (
    ApplicationConfiguration,
    check_same_key_groups,
    merged_configuration,
)
from epochal.service.applications.lifecycle import Lifecycle, changes, start_operation
from epochal.service.applications.repository import ApplicationRepository, check_one_of
from epochal.service.applications.schemas import ApplicationAnswer, ForkApplication
from epochal.service.applications.views import application_answer
from epochal.service.artifacts.files import artifact_path
from epochal.service.catalog.announcements import operation_changed
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import BranchOrigin
from epochal.service.catalog.lineage import committed_head
from epochal.service.catalog.models import Application, Artifact, Version
from epochal.service.ports import Builder, ControlEvent
from epochal.service.settings import Settings
from epochal.service.snapshots.repository import SnapshotRepository
from epochal.service.versions.repository import VersionRepository


class SharedTargets(InvalidInput):
    """The fork would write where its source writes."""

    slug = "shared-sink-targets"


@dataclass(frozen=True)
class _Plan:
    """What the fork will be, before its code was looked at."""

    base: EpochKey
    source: Version
    artifact: Artifact
    parameters: dict[str, Any]
    configuration: ApplicationConfiguration


class ForkService:
    def __init__(self, settings: Settings, database: Database, builder: Builder, lifecycle: Lifecycle) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._lifecycle = lifecycle

    def fork(self, source: str, request: ForkApplication, by: str) -> ApplicationAnswer:
        """Raises ``NotFound``, ``NameTaken``, ``Conflict`` without a committed epoch, ``SharedTargets``, and what the
        builder says of the code."""
        check_one_of(request.epoch, request.savepoint)
        with self._database.reading() as session:
            ApplicationRepository(session).check_free(request.name)
            plan = self._plan(session, source, request)
        graph = self._builder.describe(self._path(plan.artifact), plan.parameters)
        if not request.shadow:
            _check_targets(source, self._graph_of(plan.source), graph)
        with self._database.writing() as session:
            row, events = self._write(session, plan, graph, request, by)
            answer = application_answer(session, row)
        self._lifecycle.announce(events, answer.execution)
        return answer

    def _plan(self, session: Session, source: str, request: ForkApplication) -> _Plan:
        row = ApplicationRepository(session).named(source)
        base = _base(session, row, request)
        version = VersionRepository(session).latest(row)
        configuration = merged_configuration(version.configuration, request.configuration)
        check_same_key_groups(ApplicationConfiguration.model_validate(version.configuration), configuration)
        return _Plan(
            base=base,
            source=version,
            artifact=VersionRepository(session).artifact(request.artifact or version.artifact),
            parameters={**version.parameters, **request.parameters},
            configuration=configuration,
        )

    @staticmethod
    def _write(
        session: Session, plan: _Plan, graph: GraphDescription, request: ForkApplication, by: str
    ) -> tuple[Application, list[ControlEvent]]:
        origin = BranchOrigin("fork", plan.base, request.message)
        row = ApplicationRepository(session).add(request.name, origin, request.shadow, by)
        VersionRepository(session).add(row, 1, plan.artifact.sha256, plan.parameters, plan.configuration, graph, by)
        events: list[ControlEvent] = []
        if request.start:
            events.append(operation_changed(row.name, start_operation(session, row, by)))
            events += changes(session, row)
        return row, events

    def _graph_of(self, version: Version) -> GraphDescription:
        if version.graph is not None:
            return GraphDescription.model_validate(version.graph)
        with self._database.reading() as session:
            artifact = VersionRepository(session).artifact(version.artifact)
        return self._builder.describe(self._path(artifact), version.parameters)

    def _path(self, artifact: Artifact) -> Path:
        return artifact_path(self._settings.artifacts_directory, artifact.sha256, artifact.filename)


def _base(session: Session, source: Application, request: ForkApplication) -> EpochKey:
    if request.epoch is not None or request.savepoint is not None:
        return SnapshotRepository(session).resolve(source, request.epoch, request.savepoint).key
    head = committed_head(session, ApplicationRepository(session).branch(source))
    if head is None:
        raise Conflict(f"Application {source.name!r} has not committed an epoch yet; there is nothing to fork.")
    return head


def _check_targets(source: str, before: GraphDescription, after: GraphDescription) -> None:
    taken = set(before.sinks.values())
    shared = sorted(name for name, target in after.sinks.items() if target in taken and names_place(target))
    if shared:
        targets = ", ".join(f"{name!r} ({after.sinks[name]})" for name in shared)
        raise SharedTargets(
            f"The fork would write where {source!r} writes: sinks {targets}. Give parameters that name other targets, "
            "or fork with shadow, which writes to no sink."
        )
