"""Sinks of running applications: compaction of the tables that they write, by the driver."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.contracts.catalog import OptimizeOrder
from epochal.errors import Conflict
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.events import announce_operation
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.models import Application, Execution
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.applications import Lifecycle
from epochal.service.domain.table_sinks import check_can_be_compacted
from epochal.wire.operations import OperationAnswer


class SinkService:
    def __init__(self, database: Database, lifecycle: Lifecycle) -> None:
        self._database = database
        self._lifecycle = lifecycle

    def optimize(self, application: str, sink: str, by: str) -> OperationAnswer:
        """Raises ``NotFound``; ``InvalidInput`` for a sink that is not a Delta table; ``Conflict`` for an application
        that does not run or that is being optimized."""
        with self._database.writing() as session:
            applications, operations = ApplicationRepository(session), OperationRepository(session)
            row = applications.locked(application)
            execution = applications.execution(row)
            check_can_be_compacted(application, sink, _targets(session, row, execution))
            if row.shadow:
                raise Conflict(f"Application {application!r} is a shadow: it writes no table. Name its source instead.")
            if execution is None or execution.state in ENDED or execution.state == "stopping":
                raise Conflict(
                    f"Application {application!r} is not running; only its driver has the sink and its credentials. "
                    f"Start it (`epochal start {application}`), and repeat the command. Or compact the table with its "
                    "own tools."
                )
            operations.check_none_running(row, ("optimize",))
            order = OptimizeOrder(sink=sink).model_dump(mode="json")
            operation = operations.add("optimize", row, execution, order, by, "waiting for the driver")
            operations.direct(execution, operation, "optimize", order)
            answer = operation_answer(operation, application)
            announce_operation(session, application, operation)
            waiting = operation.execution
        self._lifecycle.wake(waiting)
        return answer


def _targets(session: Session, application: Application, execution: Execution | None) -> Mapping[str, str]:
    """Sinks and targets of the version that runs, or else of the latest one."""
    versions = VersionRepository(session)
    running = None if execution is None or execution.state in ENDED else execution.version
    version = versions.latest(application) if running is None else versions.numbered(application, running)
    return {} if version.graph is None else dict(version.graph["sinks"])
