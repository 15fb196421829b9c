"""The standing queries of one application."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.client.exchanges import path
from epochal.client.models import Operation, QueryResult, QueryResults, StandingQueries, StandingQuery
from epochal.client.transport import Transport
from epochal.wire.bodies import read


class Queries:
    """``client.application(name).queries``. Commands answer with an operation: ``client.operations.wait`` gives its
    result, which says the epoch from which on they hold."""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def add(self, query: str, *, operator: str | None = None, expires_after: str | None = None) -> Operation:
        """Begin to answer a query; the result has its id: ``{query, epoch, ..}``. ``expires_after``: an interval.

        Raises ``QueryRefused``, ``Conflict`` where the application does not run or allows no more.
        """
        body = {"query": query, "operator": operator, "expires_after": expires_after}
        return read(Operation, self._transport.post(self._path(), body))

    def list(self) -> list[StandingQuery]:
        """By id."""
        return list(read(StandingQueries, self._transport.get(self._path())).items)

    def get(self, query: int) -> StandingQuery:
        return read(StandingQuery, self._transport.get(self._path(query)))

    def pause(self, query: int) -> Operation:
        """Stop answering; its results stay."""
        return read(Operation, self._transport.post(self._path(query, "pause"), {}))

    def resume(self, query: int) -> Operation:
        """Answer again, beginning with the first window of which every row is still to come."""
        return read(Operation, self._transport.post(self._path(query, "resume"), {}))

    def drop(self, query: int) -> Operation:
        """End it; its results are gone."""
        return read(Operation, self._transport.post(self._path(query, "drop"), {}))

    def results(self, query: int, limit: int | None = None) -> Iterator[QueryResult]:
        """By window and group, page by page; all of one epoch."""
        cursor: str | None = None
        left = limit
        while True:
            options = {"cursor": cursor, "limit": None if left is None else min(left, 1000)}
            found = {name: value for name, value in options.items() if value is not None}
            page = read(QueryResults, self._transport.get(self._path(query, "results"), found))
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None or left == 0:
                return

    def _path(self, *parts: str | int) -> str:
        return path("applications", self._application, "queries", *parts)
