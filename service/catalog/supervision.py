"""Which control plane supervises the executions of a catalog: one row, kept fresh by the database's clock."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sqlalchemy import delete

from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Supervisor
from epochal.service.catalog.types import database_now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.ports import SupervisedBy

_ROW = 1


class SupervisorHeartbeat:
    """This process's claim to supervise, made for the data folder ``data``."""

    def __init__(self, database: Database, data: Path) -> None:
        self._database = database
        self._data = data
        self._holder = new_id()

    def send(self, folder: str, timeout_seconds: float) -> SupervisedBy | None:
        """Claim the right to supervise, or keep it: ``None``. Otherwise who has it, and nothing is changed.

        ``folder`` is the data folder's own id: two processes of one folder exclude each other by its lock, so the one
        that asks is the only one left. A heartbeat of another folder counts until it is ``timeout_seconds`` old.
        Raises ``Conflict`` when two claim at once, ``CatalogUnavailable``, ``OutcomeUnknown``.
        """
        with self._database.writing() as session:
            moment = database_now(session)
            row = session.get(Supervisor, _ROW, with_for_update=True)
            if row is None:
                row = Supervisor(id=_ROW)
                session.add(row)
            elif row.holder != self._holder and row.folder != folder:
                age = (moment - row.heartbeat_at).total_seconds()
                if age <= timeout_seconds:
                    return SupervisedBy(row.host, row.process, Path(row.data), max(age, 0.0))
            row.holder, row.folder, row.heartbeat_at = self._holder, folder, moment
            row.host, row.process, row.data = socket.gethostname(), os.getpid(), str(self._data.absolute())
        return None

    def end(self) -> None:
        """Another control plane need not wait. Nothing happens when this one does not supervise."""
        with self._database.writing() as session:
            session.execute(delete(Supervisor).where(Supervisor.holder == self._holder))
