"""Proposed versions: built, analysed, and compared with the state that they would continue from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochal.contracts.catalog import EpochRange, ManifestReference, RestorePoint
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey
from epochal.contracts.inbox import CallBatch
from epochal.engine.trial_report import TrialReport
from epochal.errors import IncompatibleState
from epochal.pipeline.description import GraphDescription
from epochal.pipeline.parallelism import check_operators, check_parallelism
from epochal.service.catalog.database import Session
from epochal.service.catalog.models import Application, Artifact, Version
from epochal.service.catalog.records import manifest_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.domain.building import Producer, RestorePointsOf, ShownOf, TrialOf
from epochal.service.domain.comparison import compared
from epochal.service.domain.ports import Builder, Meanwhile
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.snapshots.continuation import Continuation, against_shrinking, continuation, end_of_input
from epochal.snapshots.store import SnapshotStore
from epochal.state.accepted_differences import check_acceptance, differences
from epochal.state.evolution import TableChange, compare
from epochal.state.table import StateTable
from epochal.wire.configuration import (
    ApplicationConfiguration,
    check_configuration,
    check_same_key_groups,
)
from epochal.wire.preflight import Comparison
from epochal.wire.projects import project_of


@dataclass(frozen=True)
class Candidate:
    """A version before analysis. ``before``: the version that it replaces."""

    project: str
    before: Version
    artifact: Artifact
    parameters: Parameters
    configuration: ApplicationConfiguration
    acceptance: Acceptance = NOTHING_ACCEPTED


@dataclass(frozen=True)
class Proposal:
    """An analysed version. ``comparison`` is with the snapshot that it would continue from."""

    candidate: Candidate
    graph: GraphDescription
    comparison: Comparison

    def check(self) -> None:
        """Raise ``IncompatibleState`` with all reasons against continuing from the snapshot."""
        if self.comparison.problems:
            raise IncompatibleState(" ".join(self.comparison.problems))


class Proposals:
    """Analyses versions without changing anything."""

    def __init__(self, settings: Settings, builder: Builder, store: SnapshotStore, code: ArtifactCache) -> None:
        self._settings = settings
        self._builder = builder
        self._store = store
        self._code = code

    def candidate(
        self,
        session: Session,
        application: Application,
        artifact: str | None,
        parameters: Parameters | None,
        configuration: ApplicationConfiguration | None,
        acceptance: Acceptance = NOTHING_ACCEPTED,
    ) -> Candidate:
        """``None`` keeps a value. Raises ``ArtifactError``, ``OptionError``."""
        versions = VersionRepository(session)
        before = versions.latest(application)
        now = ApplicationConfiguration.model_validate(before.configuration)
        if configuration is not None:
            check_configuration(configuration)
            check_same_key_groups(now, configuration)
        row = versions.artifact(before.artifact) if artifact is None else versions.usable(artifact, application.project)
        return Candidate(
            project=application.project,
            before=before,
            artifact=row,
            parameters=before.parameters if parameters is None else parameters,
            configuration=configuration or now,
            acceptance=acceptance,
        )

    def described(self, candidate: Candidate) -> GraphDescription:
        """Describe the graph without Spark. Raises the builder's errors."""
        code = self._code.file(candidate.artifact)
        return self._builder.describe(candidate.project, code, candidate.parameters, candidate.configuration)

    def proposal(
        self, candidate: Candidate, snapshot: ManifestReference | None, producer: GraphDescription | None
    ) -> Proposal:
        """Compare with ``snapshot`` and the graph of the version that created it. Raises the builder's errors."""
        code = self._code.file(candidate.artifact)
        graph = self._builder.analyse(candidate.project, code, candidate.parameters, candidate.configuration)
        return self.compared(candidate, graph, snapshot, producer)

    def compared(
        self,
        candidate: Candidate,
        graph: GraphDescription,
        snapshot: ManifestReference | None,
        producer: GraphDescription | None,
    ) -> Proposal:
        """Like :meth:`proposal`, for a version with a known graph. Raises ``InvalidInput`` if an accepted name is
        not a difference, ``OptionError`` for a number of subtasks of an unknown operator."""
        check_parallelism(graph.scaled, candidate.configuration)
        found, acceptance = None, candidate.acceptance
        if snapshot is not None and graph.tables is not None:
            found = _continuation(self._store, snapshot, graph, graph.tables, candidate.configuration, acceptance)
        check_acceptance(() if found is None else found.changes, acceptance)
        comparison = compared(producer, graph, found)
        return Proposal(candidate, graph, comparison)

    def check_rescale(self, candidate: Candidate, operators: Iterable[str], snapshot: ManifestReference | None) -> None:
        """Raise ``IncompatibleState`` with every state that cannot continue from ``snapshot`` with the candidate's
        numbers of subtasks, ``OptionError`` if one of ``operators`` is unknown."""
        version = candidate.before
        graph = graph_of(version)
        if graph is not None:
            check_operators(graph.scaled, operators)
            check_parallelism(graph.scaled, candidate.configuration)
        if snapshot is None:
            return
        tables = () if graph is None else graph.tables or ()
        subtasks = {} if graph is None else graph.subtasks(candidate.configuration)
        manifest = self._store.read_manifest(snapshot)
        problems = list(against_shrinking(manifest, tables, subtasks))
        if pending := differences(compare(manifest.tables, tables)):
            problems.append(
                f"Version {version.number} differs from the snapshot in {', '.join(pending)}, and has not committed an "
                "epoch. Start the application first; rescale it after the first epoch of this version."
            )
        if problems:
            raise IncompatibleState(" ".join(problems))

    def check_in_snapshot(self, candidate: Candidate, snapshot: ManifestReference) -> None:
        """Raise ``IncompatibleState`` if another application would continue without a state that is in no snapshot."""
        tables = [table.id for table in self._store.read_manifest(snapshot).tables if not table.durable]
        if missing := sorted(set(tables) - set(candidate.configuration.allow_dropped_state)):
            raise IncompatibleState(
                f"State {', '.join(map(repr, missing))} is not durable, and not in snapshot {snapshot.key}: a fork "
                f"would begin without it. To allow that: configuration.allow_dropped_state = {missing}."
            )

    def as_it_was(self, session: Session, project: str, version: Version) -> Candidate:
        """An unchanged version of an application of the project. Raises ``ArtifactError``."""
        return Candidate(
            project=project,
            before=version,
            artifact=VersionRepository(session).artifact(version.artifact),
            parameters=version.parameters,
            configuration=ApplicationConfiguration.model_validate(version.configuration),
        )

    def producer(self, candidate: Candidate) -> Producer:
        """A version in the builder's form. May fetch its code: do not call within a transaction."""
        return Producer(
            artifact=self._code.file(candidate.artifact),
            parameters=candidate.parameters,
            configuration=candidate.configuration,
        )

    def shown(self, application: str, producer: Producer, at: EpochKey, attempt: int) -> Mapping[str, int | None]:
        """Epochs of a branch that the sinks of a version show: see ``Builder.shown``."""
        branch = ShownOf(application=application, at=at, attempt=attempt, store=self._settings.store_url)
        project = project_of(application)
        return self._builder.shown(project, producer.artifact, producer.parameters, branch, producer.configuration)

    def restore_points(
        self, application: str, producer: Producer, sinks: Iterable[str], left: Mapping[str, EpochRange]
    ) -> Mapping[str, RestorePoint]:
        """See ``Builder.restore_points``."""
        tables = RestorePointsOf(store=self._settings.store_url, sinks=tuple(sinks), left=dict(left))
        project = project_of(application)
        return self._builder.restore_points(
            project, producer.artifact, producer.parameters, tables, producer.configuration
        )

    def trial(
        self,
        application: str,
        candidate: Candidate,
        head: ManifestReference,
        producer: Producer,
        epochs: int,
        name: str,
        calls: tuple[CallBatch, ...],
        meanwhile: Meanwhile,
    ) -> TrialReport:
        """Rerun the last ``epochs`` epochs with the new version, and with the version that created ``head``, in shadow.
        ``calls``: those that these epochs processed."""
        trial = TrialOf(
            application=application,
            store=self._settings.store_url,
            head=head,
            epochs=epochs,
            name=name,
            producer=producer,
            calls=calls,
        )
        code, project = self._code.file(candidate.artifact), candidate.project
        return self._builder.trial(project, code, candidate.parameters, candidate.configuration, trial, meanwhile)


def _continuation(
    store: SnapshotStore,
    snapshot: ManifestReference,
    graph: GraphDescription,
    tables: Sequence[StateTable],
    configuration: ApplicationConfiguration,
    acceptance: Acceptance,
) -> Continuation:
    may_drop, subtasks = configuration.allow_dropped_state, graph.subtasks(configuration)
    return continuation(store, snapshot, tables, graph.loops, may_drop, subtasks, acceptance)


def head_and_maker(session: Session, application: Application) -> tuple[ManifestReference | None, Version]:
    """The latest committed snapshot and the version that created it; without one, the latest version."""
    versions, head = VersionRepository(session), SnapshotRepository(session).head(application)
    if head is None:
        return None, versions.latest(application)
    return manifest_of(head), versions.maker(application, head)


def graph_of(version: Version) -> GraphDescription | None:
    return None if version.graph is None else GraphDescription.model_validate(version.described)


def check_goes_on(
    store: SnapshotStore, version: Version, snapshot: ManifestReference, acceptance: Acceptance = NOTHING_ACCEPTED
) -> None:
    """Raises ``IncompatibleState`` with all reasons, ``InvalidInput`` if an accepted name is not a difference."""
    manifest = store.read_manifest(snapshot)
    configuration = ApplicationConfiguration.model_validate(version.configuration)
    graph = graph_of(version)
    tables = None if graph is None else graph.tables
    problems = [] if tables is not None else list(end_of_input(manifest))
    if manifest.max_parallelism != configuration.max_parallelism:
        problems.append(
            f"it has {manifest.max_parallelism} key groups, version {version.number} has "
            f"{configuration.max_parallelism}; fork it with max_parallelism {manifest.max_parallelism} instead."
        )
    changes: Sequence[TableChange] = ()
    if graph is not None and tables is not None:
        found = _continuation(store, snapshot, graph, tables, configuration, acceptance)
        problems += found.problems
        changes = found.changes
    check_acceptance(changes, acceptance)
    if problems:
        raise IncompatibleState(
            f"Version {version.number} cannot continue from snapshot {snapshot.key}: {' '.join(problems)} Create a "
            "compatible version, or fork the snapshot with one."
        )
