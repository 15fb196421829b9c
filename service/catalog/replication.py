"""Whether the catalog's database would still have every decision after a fail-over."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

_WAITING = ("on", "remote_apply", "remote_write")
"""Values of ``synchronous_commit`` with which a commit waits for the standbys that are named."""


def is_replicated_synchronously(session: Session) -> bool | None:
    """Whether a commit waits for a standby. ``None``: a SQLite file, of which there is one."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    commit, standbys = session.execute(
        text("SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')")
    ).one()
    return waits_for_standbys(commit, standbys)


def waits_for_standbys(commit: str, standbys: str) -> bool:
    """With these ``synchronous_commit`` and ``synchronous_standby_names`` of PostgreSQL."""
    return commit in _WAITING and bool(standbys.strip())
