"""Targets of sinks. A target belongs to one application until the application is deleted."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from epochal.contracts.backend import names_place
from epochal.errors import InvalidInput
from epochal.service.catalog.models import Application, Execution, Json, Version
from epochal.wire.projects import project_of


class SharedTargets(InvalidInput):
    """A sink would write to the target of another application."""

    slug = "shared-sink-targets"


def check_sink_targets(
    session: Session, sinks: Mapping[str, str], project: str, application: Application | None = None
) -> None:
    """Raises ``SharedTargets`` if one of ``sinks`` (name -> target) would write to the target of another application,
    in any project. ``project``: the caller's project.

    ``application``: the owner of the sinks, if it exists; its own targets are not checked again.
    """
    owners: dict[str, str] = {}
    own: set[str] = set()
    for id, name, graph in session.execute(_written()):
        targets = [] if graph is None else graph["sinks"].values()
        if application is not None and id == application.id:
            own.update(targets)
        else:
            owners.update(dict.fromkeys(targets, name))
    shared = [
        (sink, target)
        for sink, target in sorted(sinks.items())
        if target in owners and target not in own and names_place(target)
    ]
    if shared:
        found = ", ".join(f"{sink!r} to {target}, as {_shown(owners[target], project)} does" for sink, target in shared)
        owner = owners[shared[0][1]]
        over = f"; or delete {owner!r} if it is no longer needed" if project_of(owner) == project else ""
        raise SharedTargets(
            f"Sinks would write to targets of another application: {found}. Set parameters that name other "
            f"targets{over}."
        )


def _shown(owner: str, project: str) -> str:
    """The owner's name is not disclosed to other projects."""
    return repr(owner) if project_of(owner) == project else "one of another project"


def _written() -> Select[str, str, Json | None]:
    """Application, name and graph of running versions and of those that would run next. Shadow applications write
    nowhere."""
    latest = (
        select(Version.application, func.max(Version.number).label("number"))
        .where(Version.failure.is_(None))
        .group_by(Version.application)
        .subquery()
    )
    return (
        select(Application.id, Application.name, Version.graph)
        .join(Version, Version.application == Application.id)
        .join(latest, latest.c.application == Application.id)
        .outerjoin(Execution, Execution.id == Application.execution)
        .where(
            Application.deleted_at.is_(None),
            Application.shadow.is_(False),
            or_(Version.number == latest.c.number, Version.number == Execution.version),
        )
    )
