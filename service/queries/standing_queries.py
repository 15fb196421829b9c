"""What standing queries an application has."""

from __future__ import annotations

from epochal.contracts.conditions import as_datetime
from epochal.service.runtime.standing_queries import StandingQueriesInForce, found_in
from epochal.standing.active import StandingQuery
from epochal.wire.queries import StandingQueriesAnswer, StandingQueryAnswer


class StandingQueryDirectory:
    """Raises ``NotFound``, and what reading a snapshot raises."""

    def __init__(self, in_force: StandingQueriesInForce) -> None:
        self._in_force = in_force

    def all(self, application: str) -> StandingQueriesAnswer:
        active, epoch = self._in_force.of(application)
        return StandingQueriesAnswer(items=[_answer(query) for query in active.queries], epoch=epoch)

    def one(self, application: str, query: int) -> StandingQueryAnswer:
        active, _ = self._in_force.of(application)
        return _answer(found_in(active, application, query))


def _answer(query: StandingQuery) -> StandingQueryAnswer:
    return StandingQueryAnswer(
        id=query.id,
        operator=query.operator,
        query=query.text,
        owner=query.owner,
        state=query.state,
        epoch=query.epoch,
        since=as_datetime(query.since),
        expires_at=None if query.expires_at is None else as_datetime(query.expires_at),
        cost=query.query.cost,
    )
