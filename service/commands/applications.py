"""Applications: created after analysis of their code, started, stopped, restarted, deleted.

Start and stop record the requested state in the catalog with an operation; the supervisor carries them out.
"""

from __future__ import annotations

from collections.abc import Callable

from epochal.contracts.backend import names_place
from epochal.contracts.configuration import NOTHING_ACCEPTED
from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict
from epochal.service.catalog.application_answers import application_answer
from epochal.service.catalog.applications import ApplicationRepository, Revisions
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.events import announce_execution, announce_operation
from epochal.service.catalog.executions import ENDED, BranchOrigin, add_branch, begin_execution, check_not_drained
from epochal.service.catalog.models import Application, Execution, Operation
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.projects import APPLICATIONS, QUOTAS, RUNNING, ProjectRepository
from epochal.service.catalog.records import head_of
from epochal.service.catalog.savepoints import SavepointRepository
from epochal.service.catalog.sink_targets import check_sink_targets
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.domain.ports import Builder, Supervisor
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.wire.applications import ApplicationAnswer, CreateApplication
from epochal.wire.configuration import check_configuration
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import new_name


class ApplicationService:
    def __init__(
        self, settings: Settings, database: Database, builder: Builder, code: ArtifactCache, lifecycle: Lifecycle
    ) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._code = code
        self._lifecycle = lifecycle

    def create(self, request: CreateApplication, project: str, by: str) -> ApplicationAnswer:
        """Raises ``NotFound`` without such a project, ``NameTaken``, ``ArtifactError``, ``SharedTargets``,
        ``QuotaExceeded``, ``OptionError`` if its drivers cannot run anywhere, and the builder's errors."""
        check_configuration(request.configuration)
        name = new_name(project, request.name)
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            self._settings.check_project(project)
            ApplicationRepository(session).check_free(name)
            artifact = VersionRepository(session).usable(request.artifact, project)
        graph = self._builder.analyse(project, self._code.file(artifact), request.parameters, request.configuration)
        with self._database.writing() as session:
            check_sink_targets(session, graph.sinks, project)
            row = ApplicationRepository(session).add(name, BranchOrigin("start"), shadow=False, by=by)
            VersionRepository(session).add(
                row, 1, artifact.sha256, request.parameters, request.configuration, graph, by
            )
            if request.start:
                started = start_operation(session, row, by, available_now=request.available_now, drain=request.drain)
                announce_begun(session, row, started)
            ProjectRepository(session).check_room(project, QUOTAS if request.start else APPLICATIONS)
            answer = application_answer(session, row)
        self._lifecycle.wake(answer.execution)
        return answer

    def delete(self, name: str, revisions: Revisions = None) -> None:
        """Delete the application and release its name. Snapshots stay: forks may depend on them. Raises ``Conflict``
        while it runs."""
        with self._database.writing() as session:
            repository = ApplicationRepository(session)
            row = repository.locked(name, revisions)
            execution = repository.execution(row)
            if execution is not None and execution.state not in ENDED:
                raise Conflict(f"Application {name!r} is {execution.state}; stop it before deleting it.")
            repository.delete(row)


LifecycleChange = Callable[[Session, Application], Operation]


class Lifecycle:
    def __init__(self, database: Database, supervisor: Supervisor) -> None:
        self._database = database
        self._supervisor = supervisor

    def start(
        self,
        name: str,
        savepoint: str | None,
        by: str,
        *,
        available_now: bool = False,
        drain: bool = True,
        revisions: Revisions = None,
    ) -> OperationAnswer:
        """Run the latest version, from the head of the branch or from ``savepoint``.

        ``available_now``: process the input available at the start, and end. ``drain``: end with a last epoch after all
        input.

        Raises ``NotFound``, ``Conflict`` if the application runs or is being rekeyed, or if a start from elsewhere
        would leave prepared epochs uncommitted; ``IncompatibleState`` if it is drained; ``QuotaExceeded``.
        """

        def change(session: Session, application: Application) -> Operation:
            OperationRepository(session).check_none_running(application, ["rekey"])
            if savepoint is not None:
                _check_over(session, application)
                move_to(session, application, SavepointRepository(session).get(application, savepoint).key, by)
            check_not_drained(session, application)
            operation = start_operation(session, application, by, available_now=available_now, drain=drain)
            ProjectRepository(session).check_room(application.project, RUNNING)
            return operation

        return self._carry_out(name, change, revisions)

    def stop(self, name: str, savepoint: str | None, by: str, revisions: Revisions = None) -> OperationAnswer:
        """Finish and commit the current epoch, then stop. Raises ``Conflict`` if it does not run, ``NameTaken``."""

        def change(session: Session, application: Application) -> Operation:
            execution = _running(session, application)
            if savepoint is not None:
                SavepointRepository(session).check_free(application, savepoint)
            operations = OperationRepository(session)
            operation = operations.add("stop", application, execution, {"savepoint": savepoint}, by, "stopping")
            operations.ask_to_stop(execution, operation)
            return operation

        return self._carry_out(name, change, revisions)

    def restart(self, name: str, by: str, revisions: Revisions = None) -> OperationAnswer:
        """Stop the application if it runs, and start the latest version. Raises ``QuotaExceeded`` if it does not
        run."""

        def change(session: Session, application: Application) -> Operation:
            repository, operations = ApplicationRepository(session), OperationRepository(session)
            execution = repository.execution(application)
            if execution is None or execution.state in ENDED:
                operations.check_none_running(application, ["rekey"])
                check_not_drained(session, application)
                successor = begin_execution(
                    session,
                    application,
                    available_now=execution is not None and execution.available_now,
                    drain=execution is None or execution.drain,
                )
                operation = operations.add("restart", application, successor, {"successor": True}, by, "starting")
                ProjectRepository(session).check_room(application.project, RUNNING)
                return operation
            execution = _running(session, application)
            operation = operations.add("restart", application, execution, {"successor": False}, by, "stopping")
            operations.ask_to_stop(execution, operation)
            return operation

        return self._carry_out(name, change, revisions)

    def _carry_out(self, name: str, change: LifecycleChange, revisions: Revisions) -> OperationAnswer:
        with self._database.writing() as session:
            application = ApplicationRepository(session).locked(name, revisions)
            operation = change(session, application)
            announce_begun(session, application, operation)
            answer = operation_answer(operation, name)
            execution = operation.execution
        self.wake(execution)
        return answer

    def wake(self, execution: str | None) -> None:
        """Wake the supervisor, after the transaction."""
        if execution is not None:
            self._supervisor.wake(execution)


def start_operation(
    session: Session, application: Application, by: str, *, available_now: bool = False, drain: bool = True
) -> Operation:
    """Create an execution, and the operation that waits for its driver."""
    execution = begin_execution(session, application, available_now=available_now, drain=drain)
    return OperationRepository(session).add("start", application, execution, {}, by, "starting")


def announce_begun(session: Session, application: Application, operation: Operation) -> None:
    """Announce the operation and its execution, if any."""
    announce_operation(session, application.name, operation)
    execution = ApplicationRepository(session).execution(application)
    if execution is not None:
        announce_execution(session, application.name, execution)


def move_to(session: Session, application: Application, key: EpochKey, by: str) -> None:
    """Continue from an older snapshot, on a new branch. No effect if the snapshot is the head."""
    if head_of(ApplicationRepository(session).branch(application)) == key:
        return
    if SnapshotRepository(session).prepared(application):
        raise Conflict(
            f"Application {application.name!r} has prepared epochs with uncommitted sinks. Start it once without a "
            "savepoint and stop it, to commit them."
        )
    _check_sinks_stay(session, application, key)
    add_branch(session, application, BranchOrigin("start", key), by)
    VersionRepository(session).accept(application, NOTHING_ACCEPTED)


def _check_sinks_stay(session: Session, application: Application, key: EpochKey) -> None:
    """Refuse to start before epochs that sinks show: a rollback handles them, a fork has separate sinks."""
    version = VersionRepository(session).latest(application)
    if application.shadow or version.graph is None:
        return
    places = {name: target for name, target in version.graph["sinks"].items() if names_place(target)}
    if places:
        sinks = ", ".join(f"{name!r} ({target})" for name, target in sorted(places.items()))
        raise Conflict(
            f"Application {application.name!r} cannot return to epoch {key.epoch}: its sinks show later epochs: "
            f"{sinks}. Roll it back (`epochal rollback`), which shows what happens to them; fork it from the "
            "savepoint, with other targets or in shadow; or start it without a savepoint."
        )


def _check_over(session: Session, application: Application) -> None:
    execution = ApplicationRepository(session).execution(application)
    if execution is not None and execution.state not in ENDED:
        raise Conflict(f"Application {application.name!r} is {execution.state}; stop it first.")


def _running(session: Session, application: Application) -> Execution:
    """The running execution. Raises ``Conflict`` without one."""
    execution = ApplicationRepository(session).execution(application)
    if execution is None:
        raise Conflict(f"Application {application.name!r} was never started.")
    if execution.state not in ("starting", "running"):
        raise Conflict(f"Application {application.name!r} is {execution.state}.")
    return execution
