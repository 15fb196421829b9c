"""Entries of applications, as declared by the running version. Separate from ``versions.py``, because it imports
Arrow."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from epochal.declarations.names import alternatives
from epochal.errors import NotFound
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.executions import latest_version
from epochal.service.catalog.models import Application, Execution, Version
from epochal.service.domain.entry_calls import DeclaredEntry, declared_entries

_KEPT = 1_000


def entries_of(session: Session, application: Application) -> Mapping[str, DeclaredEntry]:
    """Entries by name: of the running version, or of the version that a start would use."""
    number = None
    if application.execution is not None:
        execution = session.get_one(Execution, application.execution)
        number = execution.version if execution.ended_at is None else None
    if number is None:
        number = latest_version(session, application.id).number
    found = _known.get((application.id, number))
    if found is None:
        version = session.get_one(Version, (application.id, number))
        found = declared_entries(version.graph)
        if len(_known) >= _KEPT:
            _known.clear()
        _known[application.id, number] = found
    return found


def entry_of(session: Session, application: str, entry: str) -> tuple[str, DeclaredEntry]:
    """The application's id and one of its entries. Raises ``NotFound``, which suggests similar names."""
    row = ApplicationRepository(session).named(application)
    entries = entries_of(session, row)
    if entry not in entries:
        raise NotFound(f"Application {application!r} has no entry {entry!r}.{alternatives(entry, entries)}")
    return row.id, entries[entry]


_known: dict[tuple[str, int], Mapping[str, DeclaredEntry]] = {}
"""Cached: versions are immutable."""
