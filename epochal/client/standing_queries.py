"""The standing queries of one application."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from epochal.client.exchanges import PAGE, path
from epochal.client.models import Operation, QueryResult, QueryResults, StandingQueries, StandingQuery
from epochal.client.state import zoned
from epochal.client.transport import Transport
from epochal.wire.bodies import read


class Queries:
    """``client.application(name).queries``. Commands return an operation, whose result contains the first epoch with
    the change."""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def add(self, query: str, *, operator: str | None = None, expires_after: str | None = None) -> Operation:
        """Add a query. Result: ``{query, epoch, ..}`` with its id. ``expires_after``: an interval.

        Raises ``QueryRefused``, and ``Conflict`` if the application does not run or allows no more queries.
        """
        body = {"query": query, "operator": operator, "expires_after": expires_after}
        return read(Operation, self._transport.post(self._path(), body))

    def list(self) -> list[StandingQuery]:
        """Queries by id."""
        return list(read(StandingQueries, self._transport.get(self._path())).items)

    def get(self, query: int) -> StandingQuery:
        return read(StandingQuery, self._transport.get(self._path(query)))

    def pause(self, query: int) -> Operation:
        """Pause a query; its results are kept."""
        return read(Operation, self._transport.post(self._path(query, "pause"), {}))

    def resume(self, query: int) -> Operation:
        """Resume a query from the next complete window."""
        return read(Operation, self._transport.post(self._path(query, "resume"), {}))

    def drop(self, query: int) -> Operation:
        """Drop a query and its results."""
        return read(Operation, self._transport.post(self._path(query, "drop"), {}))

    def results(
        self, query: int, limit: int | None = None, *, min_window_end: datetime | None = None
    ) -> Iterator[QueryResult]:
        """Results by window and group, read page by page from one epoch: at most ``limit``, or all.

        ``min_window_end``: only those of windows that end at this time or later. Raises ``InvalidInput`` for a time
        without a zone.
        """
        start = None if min_window_end is None else zoned(min_window_end)
        cursor: str | None = None
        left = limit
        while True:
            size = PAGE if left is None else min(left, PAGE)
            options = {"cursor": cursor, "limit": size, "min_window_end": start}
            found = {name: value for name, value in options.items() if value is not None}
            page = read(QueryResults, self._transport.get(self._path(query, "results"), found))
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None or left == 0:
                return

    def _path(self, *parts: str | int) -> str:
        return path("applications", self._application, "queries", *parts)
