"""Lags, rates and waits of applications, from the latest reports of their drivers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from epochal.contracts.measurements import Load, Moment, SourceReport
from epochal.service.catalog.models import Application, Execution, Report
from epochal.wire.applications import ApplicationLag, SourceLag
from epochal.wire.projects import local_name

_UNUSED = {"tables", "placement"}
_UNUSED_OF_LOAD = {"operators", "samples", "rows_written"}


def current_moments(session: Session, applications: Collection[str]) -> Mapping[str, tuple[Moment, datetime]]:
    """The values of the last report for :func:`lag_answer`, and its time, by id of these applications; none of an
    application without an active execution, or whose present attempt has not reported."""
    query = (
        select(Report.application, Report.latest, Report.reported_at)
        .join(Application, Application.id == Report.application)
        .join(Execution, Execution.id == Application.execution)
        .where(Report.application.in_(applications), *_is_current())
    )
    return {id: (_moment(latest["moment"]), at) for id, latest, at in session.execute(query)}


def _moment(stored: Mapping[str, Any]) -> Moment:
    """Without the parts that are large and not needed: with 1,000 applications, hundreds are read per second."""
    moment = {name: value for name, value in stored.items() if name not in _UNUSED}
    if moment.get("load") is not None:
        moment["load"] = {name: value for name, value in moment["load"].items() if name not in _UNUSED_OF_LOAD}
    return Moment.model_validate(moment)


def current_reports(session: Session) -> Mapping[str, tuple[str, datetime]]:
    """Name and time of the last report of each application that has one, by id, as in :func:`current_moments`."""
    query = (
        select(Application.id, Application.name, Report.reported_at)
        .join(Report, Report.application == Application.id)
        .join(Execution, Execution.id == Application.execution)
        .where(Application.deleted_at.is_(None), *_is_current())
    )
    return {id: (name, at) for id, name, at in session.execute(query)}


def _is_current() -> tuple[ColumnElement[bool], ...]:
    return Execution.ended_at.is_(None), Report.execution == Execution.id, Report.attempt == Execution.attempt


def lag_answer(application: str, reported: tuple[Moment, datetime] | None, at: datetime) -> ApplicationLag:
    """``application``: its full name. ``at``: the time for which lags in seconds are computed."""
    moment, reported_at = (Moment(), None) if reported is None else reported
    return ApplicationLag(
        application=local_name(application),
        reported_at=reported_at,
        sources={name: SourceLag(**lag_of(source, at)) for name, source in moment.sources.items()},
        rows_per_second=_rate(moment.load),
        blocked_sinks=moment.blocked_sinks,
        store_away_since=moment.store_away_since,
    )


def lag_of(source: SourceReport, at: datetime) -> dict[str, Any]:
    """Fields of :class:`SourceLag`."""
    return {
        "records": source.records,
        "files": source.files,
        "seconds": _behind(source, at),
        "reachable": source.reachable,
    }


def _rate(load: Load | None) -> float | None:
    if load is None or load.seconds <= 0 or not load.rows_read:
        return None
    return round(sum(load.rows_read.values()) / load.seconds, 3)


def _behind(source: SourceReport, at: datetime) -> float | None:
    if source.read_until is None:
        return None
    return max(0.0, (at - source.read_until).total_seconds()) if source.is_behind else 0.0
