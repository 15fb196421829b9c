"""Read side of standing queries."""

from __future__ import annotations

from epochal.contracts.conditions import BEGINNING, NO_WATERMARKS, as_datetime
from epochal.service.runtime.standing_queries import InForce, StandingQueriesInForce, found_in
from epochal.standing_queries.active import StandingQuery
from epochal.wire.standing_queries import QueryWindow, StandingQueriesAnswer, StandingQueryAnswer


class StandingQueryDirectory:
    """Raises ``NotFound``, and the errors of reading a snapshot."""

    def __init__(self, in_force: StandingQueriesInForce) -> None:
        self._in_force = in_force

    def all(self, application: str) -> StandingQueriesAnswer:
        now = self._in_force.of(application)
        return StandingQueriesAnswer(items=[_answer(query, now) for query in now.queries.queries], epoch=now.epoch)

    def one(self, application: str, query: int) -> StandingQueryAnswer:
        now = self._in_force.of(application)
        return _answer(found_in(now.queries, application, query), now)


def _answer(query: StandingQuery, now: InForce) -> StandingQueryAnswer:
    watermarks = now.watermarks.get(query.operator, NO_WATERMARKS)
    return StandingQueryAnswer(
        id=query.id,
        operator=query.operator,
        query=query.text,
        owner=query.owner,
        state=query.state,
        epoch=query.epoch,
        since=as_datetime(query.since),
        first_window=_window(query),
        watermark=as_datetime(watermarks.fire),
        expires_at=None if query.expires_at is None else as_datetime(query.expires_at),
        cost=query.query.cost,
    )


def _window(query: StandingQuery) -> QueryWindow | None:
    start, end = map(as_datetime, query.first_window or (BEGINNING, BEGINNING))
    return None if start is None or end is None else QueryWindow(start=start, end=end)
