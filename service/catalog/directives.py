"""Directives that wait for their drivers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import func, select

from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Directive


def newest_directives(database: Database, executions: Collection[str]) -> Mapping[str, str]:
    """Of these executions, those with directives that are not carried out, and the id of the newest one of each."""
    query = select(Directive.execution, func.max(Directive.id)).where(
        Directive.execution.in_(executions), Directive.completed_at.is_(None)
    )
    with database.reading() as session:
        return {row[0]: row[1] for row in session.execute(query.group_by(Directive.execution))}
