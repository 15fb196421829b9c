"""A catalog without a service: ``epochal run``, tests and benchmarks store one application in one SQLite file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import EpochRecord, Failure
from epochal.contracts.configuration import Parameters
from epochal.errors import IncompatibleState
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import (
    ENDED,
    BranchOrigin,
    add_branch,
    begin_attempt,
    begin_execution,
    drained_head,
    end_attempt,
    latest_version,
)
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.models import Application, Artifact, Attempt, Epoch, Execution, Version
from epochal.service.catalog.operation_completion import execution_over
from epochal.service.catalog.records import epoch_record
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id

_OWNER = "standalone"
_TAKEN_OVER = Failure(type="driver-lost", message="A later run has taken over.")


def standalone_catalog(
    url: str,
    application: str,
    artifact_sha256: str,
    parameters: Parameters | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> SqlCatalog:
    """The catalog of a new attempt at ``application``, in the database at ``url`` (``sqlite:///run/catalog.sqlite``).

    The file and the application are created if missing. Otherwise the run continues where the last one stopped, and
    fences it if it is still alive. Call ``begin_attempt`` next.

    Raises ``CatalogVersion``, ``CatalogUnavailable``; ``IncompatibleState`` if the last run was drained.
    """
    database = Database(url, keeps_events=False)
    migrate_database(database)
    with database.writing() as session:
        row = session.scalars(select(Application).where(Application.name == application)).one_or_none()
        if row is None:
            row = _new_application(session, application)
        else:
            _check_not_drained(session, row)
            _end_earlier_run(session, row)
        _new_version(session, row, artifact_sha256, dict(parameters or {}), dict(configuration or {}))
        execution = begin_execution(session, row)
        attempt = begin_attempt(session, execution, token_sha256=None)
        return SqlCatalog(database, execution.id, attempt.number)


def standalone_epochs(url: str, application: str) -> list[EpochRecord]:
    """All epochs of ``application`` in the database at ``url``, in order."""
    database = Database(url)
    migrate_database(database)
    with database.reading() as session:
        branch = session.scalar(select(Application.branch).where(Application.name == application))
        rows = session.scalars(select(Epoch).where(Epoch.branch == branch).order_by(Epoch.epoch)).all()
        return [epoch_record(row) for row in rows]


def _new_application(session: Session, name: str) -> Application:
    moment = now()
    application = Application(
        id=new_id(), name=name, branch="", shadow=False, created_at=moment, updated_at=moment, created_by=_OWNER
    )
    session.add(application)
    session.flush()
    add_branch(session, application, BranchOrigin("start"), _OWNER)
    session.flush()
    return application


def _check_not_drained(session: Session, application: Application) -> None:
    head = drained_head(session, application)
    if head is not None:
        raise IncompatibleState(
            f"{application.name} is finished: in epoch {head.epoch} all input had ended, and all event time "
            "results were emitted, so further input would be late. Start again with another --directory; "
            "--no-drain omits the last epoch, so that a later run can continue."
        )


def _end_earlier_run(session: Session, application: Application) -> None:
    execution = session.get(Execution, application.execution) if application.execution else None
    if execution is None or execution.state in ENDED:
        return
    running = select(Attempt.number).where(Attempt.execution == execution.id, Attempt.state == "running")
    for number in session.scalars(running).all():
        end_attempt(session, execution, number, "lost", _TAKEN_OVER)
    execution_over(session, execution, "stopped", None)


def _new_version(
    session: Session, application: Application, sha256: str, parameters: Parameters, configuration: dict[str, Any]
) -> None:
    if session.get(Artifact, sha256) is None:
        moment = now()
        session.add(
            Artifact(
                sha256=sha256,
                filename="standalone",
                bytes=0,
                created_at=moment,
                created_by=_OWNER,
                uploaded_at=moment,
            )
        )
        session.flush()
    exists = select(Version.number).where(Version.application == application.id).limit(1)
    number = 1
    if session.scalar(exists) is not None:
        latest = latest_version(session, application.id)
        if (latest.artifact, latest.parameters, latest.configuration) == (sha256, parameters, configuration):
            return
        number = latest.number + 1
    session.add(
        Version(
            application=application.id,
            number=number,
            artifact=sha256,
            parameters=parameters,
            configuration=configuration,
            created_at=now(),
            created_by=_OWNER,
        )
    )
    session.flush()
