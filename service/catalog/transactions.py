from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.engine.epoch import State
from epochal.service.catalog.models import Epoch


class TransactionRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def prepared(self, branch: str) -> Sequence[Epoch]:
        """Prepared epochs of the branch, oldest first."""
        query = select(Epoch).where(Epoch.branch == branch, Epoch.state == State.PREPARED.value).order_by(Epoch.epoch)
        return self._session.scalars(query).all()
