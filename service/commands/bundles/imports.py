"""Imports: an application created from an uploaded bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from epochal.contracts.conditions import drained
from epochal.contracts.configuration import Acceptance
from epochal.errors import Conflict, IncompatibleState
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.bundles import ImportedRows
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.sink_targets import check_sink_targets
from epochal.service.commands.bundles.mapping import (
    BundleNames,
    MappingNeeded,
    mapped,
    needs,
    sink_moves,
    source_positions,
)
from epochal.service.commands.bundles.unpacking import unpacked
from epochal.service.commands.bundles.uploads import Uploads
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.pages import PageRequest, cut
from epochal.service.domain.ports import Builder
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.artifact_files import check_artifact
from epochal.service.runtime.operations import OperationWorker
from epochal.snapshots.bundle_format import BundleEpoch, BundleError, BundleHeader
from epochal.snapshots.bundle_reading import BundleLimits
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.state.accepted_differences import check_acceptance
from epochal.state.evolution import TableChange, compare
from epochal.wire.bodies import Page
from epochal.wire.bundles import CreateImport, ImportApplication, ImportArguments, ImportPlan, UploadAnswer
from epochal.wire.configuration import (
    ApplicationConfiguration,
    check_same_key_groups,
    merged_configuration,
)
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import local_name, new_name


@dataclass(frozen=True)
class BundleContents:
    """A bundle's header, the catalog's record of its snapshot, and its code by checksum."""

    header: BundleHeader
    snapshot: BundleEpoch | None
    artifacts: Mapping[str, Path]


class ImportService:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: LineageStore,
        builder: Builder,
        code: ArtifactCache,
        uploads: Uploads,
        worker: OperationWorker,
    ) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._code = code
        self._uploads = uploads
        self._worker = worker
        self._names = BundleNames(database, store)

    def create(self, request: CreateImport, project: str, by: str) -> UploadAnswer:
        return self._uploads.create(request, project, by)

    def page(self, page: PageRequest, project: str) -> Page[UploadAnswer]:
        """Listed oldest first."""
        after = page.after(datetime, str)
        uploads = sorted(self._uploads.all(project), key=_place)
        part = cut([each for each in uploads if after is None or _place(each) > after][: page.limit + 1], page, _place)
        return Page(items=list(part.rows), next_cursor=part.next_cursor)

    def get(self, id: str, project: str) -> UploadAnswer:
        return self._uploads.get(id, project)

    def append(self, id: str, project: str, offset: int, data: bytes) -> UploadAnswer:
        return self._uploads.append(id, project, offset, data)

    def remove(self, id: str, project: str) -> None:
        """Raises ``NotFound``, ``Conflict`` while it is being imported."""
        self._uploads.get(id, project)
        with self._database.reading() as session:
            self._check_unused(OperationRepository(session), id)
        self._uploads.remove(id)

    def plan(self, id: str, project: str, request: ImportApplication) -> ImportPlan:
        """Raises ``NotFound``, ``BundleError``, ``InvalidInput``, ``IncompatibleState`` if it is to start but is
        drained, and the builder's errors."""
        with self._contents(id, project) as contents:
            return self._look(project, contents, request)[0]

    def make(self, id: str, project: str, request: ImportApplication, by: str) -> OperationAnswer:
        """Raises ``MappingNeeded``, ``SharedTargets``, ``NameTaken``, ``Conflict``, and the errors of :meth:`plan`."""
        with self._contents(id, project) as contents:
            return self._make(id, project, contents, request, by)

    def _make(
        self, id: str, project: str, contents: BundleContents, request: ImportApplication, by: str
    ) -> OperationAnswer:
        self._settings.check_project(project)
        plan, graph, configuration = self._look(project, contents, request)
        if plan.needs:
            raise MappingNeeded(" ".join(plan.needs))
        header = self._names.header(contents.header, project)
        upload, name = self._uploads.get(id), new_name(project, plan.application)
        arguments = ImportArguments(
            branch=header.snapshot.branch,
            epoch=header.snapshot.epoch,
            upload=id,
            sha256=upload.sha256,
            name=name,
            parameters=plan.parameters,
            configuration=configuration.stored(),
            graph=graph.model_dump(mode="json"),
            shadow=request.shadow,
            start=request.start,
            message=request.message,
            acceptance=request.acceptance,
            sources={
                name: {"at": move.at.isoformat().replace("+00:00", "Z")} for name, move in request.sources.items()
            },
        )

        def record(session: Session) -> tuple[None, ImportArguments]:
            ApplicationRepository(session).check_free(name)
            if not request.shadow:
                written = {move.sink: move.becomes for move in plan.sinks if move.sink not in request.keep}
                check_sink_targets(session, written, project)
            self._check_unused(OperationRepository(session), id)
            ImportedRows(session, header, project, by).check()
            return None, arguments

        return self._worker.begin("import", by, record, project)

    @contextmanager
    def _contents(self, id: str, project: str) -> Iterator[BundleContents]:
        _, path = self._uploads.whole(id, project)
        folder = path.with_suffix(f".{new_id()}")
        with unpacked(path, folder, limits_of(self._settings), code_only=True) as bundle:
            artifacts = {member.sha256: member.file for member in bundle.members()}
            yield BundleContents(bundle.header, bundle.snapshot(), artifacts)

    def _look(
        self, project: str, contents: BundleContents, request: ImportApplication
    ) -> tuple[ImportPlan, GraphDescription, ApplicationConfiguration]:
        """Origin of the bundle, its code, and its sink targets."""
        header, artifacts = contents.header, contents.artifacts
        if request.start:
            _check_not_drained(contents.snapshot)
        version = header.made_with
        configuration = merged_configuration(version.configuration, request.configuration)
        check_same_key_groups(ApplicationConfiguration.model_validate(version.configuration), configuration)
        parameters = mapped(version.parameters, request)
        if version.artifact not in artifacts:
            raise BundleError("The bundle does not contain the code that created its snapshot: it was altered.")
        content = artifacts[version.artifact].read_bytes()
        check_artifact(version.filename, content, self._limits.artifact_unpacked_bytes)
        with self._code.for_a_while(version.filename, content) as code:
            before = (
                self._builder.describe(project, code, version.parameters, configuration)
                if version.graph is None
                else GraphDescription.model_validate(version.graph)
            )
            # The same parameters give the same tables, and an analysis takes seconds.
            same = parameters == version.parameters and not request.acceptance
            build = self._builder.describe if same or before.tables is None else self._builder.analyse
            after = build(project, code, parameters, configuration)
        _check_tables(before, after, configuration, request.acceptance)
        sinks, sources = sink_moves(before, after, request), source_positions(before, after, request)
        plan = ImportPlan(
            application=request.name or local_name(header.origin.application),
            origin=header.origin.model_dump(mode="json"),
            parameters=parameters,
            sinks=sinks,
            sources=sources,
            needs=needs(sinks, sources, parameters),
        )
        return plan, after, configuration

    @property
    def _limits(self) -> Limits:
        return self._settings.limits

    def _check_unused(self, operations: OperationRepository, id: str) -> None:
        for operation in operations.running("import"):
            if operation.arguments.get("upload") == id:
                raise Conflict(f"Import {id} is in progress (operation {operation.id}); wait until it has ended.")


def _check_tables(
    before: GraphDescription,
    after: GraphDescription,
    configuration: ApplicationConfiguration,
    acceptance: Acceptance,
) -> None:
    """Raises ``IncompatibleState`` if other parameters result in tables that cannot continue from the snapshot, and
    ``InvalidInput`` if an accepted name is not a difference."""
    changes: tuple[TableChange, ...] = ()
    if before.tables is not None and after.tables is not None:
        changes = compare(before.tables, after.tables, configuration.allow_dropped_state, acceptance)
    check_acceptance(changes, acceptance)
    if problems := [problem for change in changes for problem in change.problems]:
        raise IncompatibleState(" ".join(problems))


def _check_not_drained(snapshot: BundleEpoch | None) -> None:
    """Raise ``IncompatibleState`` for a drained snapshot."""
    if snapshot is not None and "drain" in snapshot.opened_for:
        parent = None if snapshot.parent is None else snapshot.parent.epoch
        raise IncompatibleState(
            f"The bundle's snapshot cannot be started. {drained(snapshot.epoch, parent)} To read its state here, "
            f"import it without start; to continue here, export epoch {parent}."
        )


def limits_of(settings: Settings) -> BundleLimits:
    limits = settings.limits
    return BundleLimits(artifact=limits.artifact_bytes, all=limits.bundle_unpacked_bytes)


def _place(upload: UploadAnswer) -> tuple[datetime, str]:
    """Position in the list."""
    return upload.created_at, upload.id
