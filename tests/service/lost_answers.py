"""A catalog that loses the answer to a commit, as when the connection to a database breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.orm import Session

from epochal.errors import OutcomeUnknown
from epochal.faults import FaultPoint, injected
from epochal.service.catalog.database import Database


@contextmanager
def answer_lost(database: Database, within: FaultPoint, lands: bool = True) -> Iterator[list[FaultPoint]]:
    """Lose the answer to the first transaction in which the fault point ``within`` is hit, and append that point to
    the list. If ``lands`` is false, the transaction is rolled back."""
    met: list[FaultPoint] = []
    lost: list[FaultPoint] = []
    writing = database.writing

    def note(point: FaultPoint, _epoch: int | None) -> None:
        if point == within and not lost:
            met.append(point)

    @contextmanager
    def losing(*arguments: Any) -> Iterator[Session]:
        with writing(*arguments) as session:
            yield session
            if met and not lands:
                session.rollback()
        if met:
            lost.append(met.pop())
            raise OutcomeUnknown("The catalog did not answer a commit.")

    with pytest.MonkeyPatch.context() as patched, injected(note):
        patched.setattr(database, "writing", losing)
        yield lost
