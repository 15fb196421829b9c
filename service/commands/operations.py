"""Cancellation of background operations."""

from __future__ import annotations

from epochal.errors import Forbidden
from epochal.service.catalog.database import Database
from epochal.service.catalog.operations import OperationRepository
from epochal.service.domain.operations import OF_THE_STORE
from epochal.service.domain.permissions import Principal
from epochal.service.runtime.operations import OperationWorker
from epochal.wire.operations import OperationAnswer
from epochal.wire.tokens import Role


class CancelService:
    def __init__(self, database: Database, worker: OperationWorker) -> None:
        self._database = database
        self._worker = worker

    def cancel(self, id: str, caller: Principal, project: str) -> OperationAnswer:
        """Request cancellation: the operation ends soon and removes its results. Repeated requests have no effect.

        Raises ``NotFound``, ``Forbidden``, and ``Conflict`` for operations that drivers end, and for ended operations.
        """
        with self._database.reading() as session:
            kind = OperationRepository(session).get(id, project)[0].kind
        if kind in OF_THE_STORE and not caller.may(Role.ADMIN):
            raise Forbidden(f"A {kind} concerns the whole store; cancelling it requires the role admin.")
        return self._worker.cancel(id, caller.name)
