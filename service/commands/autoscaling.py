"""Automatic rescaling of applications with ``autoscaling`` in their configuration. The leader begins ordinary
rescale operations with the actor ``autoscaler``."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from epochal.errors import EpochalError
from epochal.logs import about
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.audit import AuditedCall, AuditRepository, CallDetails, Caller, auditing
from epochal.service.catalog.autoscaling import ACTOR, ScalingRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.types import now
from epochal.service.commands.versions import VersionService
from epochal.service.domain.autoscaling import RescaleTo, Situation, decide
from epochal.service.domain.identifiers import new_id
from epochal.service.runtime.housekeeping import Housekeeping
from epochal.wire.problems import problem_of
from epochal.wire.projects import application_path, project_of
from epochal.wire.versions import Rescale

log = logging.getLogger("epochal.autoscaling")

LOOK_SECONDS = 5.0
_ROUTE = "POST /v1/applications/{name}/rescale"


@dataclass(frozen=True)
class _Refused:
    """Rescalings refused before an operation existed."""

    at: datetime
    count: int


class AutoscalingService:
    """A new leader continues with the catalog's data. Only refusals are kept in memory, so that they are not
    repeated continuously."""

    def __init__(self, database: Database, versions: VersionService, housekeeping: Housekeeping) -> None:
        self._database = database
        self._versions = versions
        self._refused: dict[str, _Refused] = {}
        housekeeping.register("autoscaling", LOOK_SECONDS, self.look)

    def look(self) -> bool:
        """Check each running application with autoscaling. Raises ``CatalogUnavailable``."""
        with self._database.reading() as session:
            found = {row.id: row.name for row in ScalingRepository(session).scaled()}
        self._refused = {id: refused for id, refused in self._refused.items() if id in found}
        for id, name in found.items():
            with about(application=name):
                try:
                    self._consider(id, name)
                except EpochalError as error:
                    log.warning("application %s could not be checked: %s", name, error)
        return False

    def _consider(self, id: str, name: str) -> None:
        moment = now()
        with self._database.reading() as session:
            repository = ApplicationRepository(session)
            row = repository.named(name)
            situation, revision = ScalingRepository(session).situation(row, moment), repository.revision(row)
        if situation is None or row.id != id:
            return
        verdict = decide(self._with_refusals(id, situation), moment)
        if isinstance(verdict, RescaleTo):
            self._rescale(id, name, verdict, revision)

    def _with_refusals(self, id: str, situation: Situation) -> Situation:
        refused = self._refused.get(id)
        if refused is None or refused.at < situation.changed_at:
            return situation
        return replace(situation, changed_at=refused.at, failed=situation.failed + refused.count)

    def _rescale(self, id: str, name: str, verdict: RescaleTo, revision: str) -> None:
        """Rescale only at the revision that was read, so that it does not overwrite concurrent changes by people."""
        outcome, operators = 202, dict(verdict.operators)
        request = Rescale(parallelism=verdict.parallelism, parallelisms=operators, message=verdict.reason)
        target = f"{application_path(name)}/rescale"
        call = AuditedCall(CallDetails(Caller(ACTOR, None, None), _ROUTE, target, outcome, new_id(), project_of(name)))
        try:
            with auditing(call):
                operation = self._versions.rescale(name, request, ACTOR, [revision])
            self._refused.pop(id, None)
            why = {"decision": "rescale", "reason": verdict.reason}
            log.info("operation %s rescales %s to %s", operation.id, name, shown(verdict), extra=why)
        except EpochalError as error:
            outcome = problem_of(error).status
            before = self._refused.get(id)
            self._refused[id] = _Refused(now(), 1 + (before.count if before else 0))
            log.warning("%s cannot be rescaled to %s: %s", name, shown(verdict), error)
        with self._database.writing() as session:
            AuditRepository(session).settle(call, outcome)


def shown(verdict: RescaleTo) -> str:
    """``8``, or ``spent 16, streaks 4``."""
    numbers = [f"{name} {number}" for name, number in verdict.operators.items()]
    return ", ".join([*([] if verdict.parallelism is None else [str(verdict.parallelism)]), *numbers])
