"""Measurements of drivers: the latest report of each application, and the totals of earlier attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.measurements import DriverReport, Moment, StragglerMove, Totals
from epochal.errors import Fenced, NotFound
from epochal.service.catalog.events import announce_blocked, announce_straggler
from epochal.service.catalog.models import Application, Execution, Report
from epochal.service.catalog.tokens import TokenRepository
from epochal.service.catalog.types import now

SHOWN_AFTER_THE_END = timedelta(minutes=5)
"""Time after the end of an execution for which its last report is shown, for periodic readers."""


@dataclass(frozen=True)
class Measured:
    """``runs``: the application runs, so that the report's ``moment`` is current."""

    application: str
    runs: bool
    totals: Totals
    moment: Moment


def keep_report(session: Session, execution: str, attempt: int, report: DriverReport) -> bool:
    """Return false if a later report has arrived before. Raises ``Fenced`` if the attempt is over, ``NotFound``."""
    running = session.get(Execution, execution)
    application = None if running is None else session.get(Application, running.application)
    if running is None or application is None:
        raise NotFound(f"There is no execution {execution!r}.")
    if application.execution != execution or running.attempt != attempt:
        raise Fenced(f"Attempt {attempt} of execution {execution} is not the latest.")
    TokenRepository(session).check_runs(execution, attempt)
    kept = session.get(Report, application.id, with_for_update=True)
    announced: Sequence[StragglerMove] = ()
    blocked: Mapping[str, datetime] = {}
    if kept is None:
        kept = Report(application=application.id, before=Totals().model_dump(mode="json"))
        session.add(kept)
    else:
        last = DriverReport.model_validate(kept.latest)
        blocked = last.moment.blocked_sinks
        if (kept.execution, kept.attempt) != (execution, attempt):
            kept.before = (Totals.model_validate(kept.before) + last.totals).model_dump(mode="json")
        elif last.number >= report.number:
            return False
        else:
            announced = _moved_stragglers(last.moment)
        if kept.execution == execution:
            report = report.model_copy(update={"moment": _still_known(last.moment, report.moment)})
    kept.execution, kept.attempt, kept.latest = execution, attempt, report.model_dump(mode="json", exclude={"epochs"})
    kept.reported_at = now()
    for move in _moved_stragglers(report.moment):
        if move not in announced:
            announce_straggler(session, application.name, move)
    for sink, since in _changed_sinks(blocked, report.moment.blocked_sinks).items():
        announce_blocked(session, application.name, sink, since)
    return True


def _changed_sinks(before: Mapping[str, datetime], after: Mapping[str, datetime]) -> Mapping[str, datetime | None]:
    """Sinks that are blocked or free since the report before, also of an earlier attempt."""
    sinks = dict.fromkeys([*before, *after])
    return {sink: after.get(sink) for sink in sinks if before.get(sink) != after.get(sink)}


def _moved_stragglers(moment: Moment) -> Sequence[StragglerMove]:
    return () if moment.placement is None else moment.placement.moved_stragglers


def measured(session: Session, moment: datetime) -> Iterator[Measured]:
    """Reports of applications that run, or ended shortly before ``moment``."""
    query = (
        select(Application.name, Execution.ended_at, Report)
        .join(Execution, Execution.id == Application.execution)
        .join(Report, Report.application == Application.id)
        .where(Application.deleted_at.is_(None))
        .where(Execution.ended_at.is_(None) | (Execution.ended_at > moment - SHOWN_AFTER_THE_END))
    )
    for name, ended_at, row in session.execute(query):
        latest = DriverReport.model_validate(row.latest)
        totals = Totals.model_validate(row.before) + latest.totals
        yield Measured(name, ended_at is None, totals, latest.moment)


def _still_known(before: Moment, moment: Moment) -> Moment:
    """A new attempt continues at its predecessor's positions, and does not know yet up to when they were complete."""
    sources = {
        name: source.model_copy(update={"read_until": before.sources[name].read_until})
        if source.read_until is None and name in before.sources
        else source
        for name, source in moment.sources.items()
    }
    idle_at = moment.idle_at or before.idle_at
    return moment.model_copy(update={"sources": sources, "idle_at": idle_at})
