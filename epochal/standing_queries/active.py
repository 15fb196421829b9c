"""The active queries of an epoch: a value that is fixed when the epoch opens, and equal in all of its tasks.

The value is stored in a file that the manifest names, so that it is forked, rolled back and exported with the state.
``through`` is the number of the last command included. The id of a query is the number of its command, and is never
reused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from epochal.contracts.conditions import BEGINNING
from epochal.standing_queries.query import Query

State = Literal["active", "paused"]


@dataclass(frozen=True)
class StandingQuery:
    """A query that was added to a running application. ``since``: the first event time, in microseconds, from which the
    query includes every row; it does not answer windows that begin earlier. ``expires_at``: an epoch time in
    microseconds; ``None``: never. ``epoch``: the first epoch with the query."""

    id: int
    operator: str
    text: str
    query: Query
    owner: str
    since: int
    epoch: int
    state: State = "active"
    expires_at: int | None = None

    @property
    def first_window(self) -> tuple[int, int] | None:
        """Start and end, in microseconds, of the first answered window since the query was added or resumed; ``None``
        if there were no earlier rows, so that it answers all windows."""
        if self.since == BEGINNING:
            return None
        begin = -(-self.since // self.query.slide) * self.query.slide
        return begin, begin + self.query.size

    @property
    def json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "operator": self.operator,
            "text": self.text,
            "query": self.query.json,
            "owner": self.owner,
            "since": self.since,
            "epoch": self.epoch,
            "state": self.state,
            "expires_at": self.expires_at,
        }

    @classmethod
    def of(cls, json: dict[str, Any]) -> StandingQuery:
        """The inverse of ``json``."""
        return cls(**{**json, "query": Query.of(json["query"])})


@dataclass(frozen=True)
class ActiveQueries:
    """The queries of an epoch, including paused ones, sorted by id."""

    through: int = 0
    queries: tuple[StandingQuery, ...] = ()

    def encode(self) -> bytes:
        """Canonical JSON."""
        fields = {"format": 1, "through": self.through, "queries": [each.json for each in self.queries]}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes) -> ActiveQueries:
        """The inverse of :meth:`encode`."""
        fields = json.loads(data)
        return cls(fields["through"], tuple(map(StandingQuery.of, fields["queries"])))

    def of(self, operator: str) -> tuple[StandingQuery, ...]:
        """The queries that an operator answers in the epoch."""
        return tuple(each for each in self.queries if each.operator == operator and each.state == "active")

    def get(self, id: int) -> StandingQuery | None:
        return next((each for each in self.queries if each.id == id), None)

    def put(self, query: StandingQuery) -> ActiveQueries:
        """A copy with this query, which replaces a query with the same id."""
        return replace(self, queries=_in_order((*self.without([query.id]).queries, query)))

    def without(self, ids: Iterable[int]) -> ActiveQueries:
        removed = set(ids)
        return replace(self, queries=tuple(each for each in self.queries if each.id not in removed))


def _in_order(queries: Iterable[StandingQuery]) -> tuple[StandingQuery, ...]:
    return tuple(sorted(queries, key=lambda query: query.id))


@lru_cache(maxsize=8)
def decoded(data: bytes) -> ActiveQueries:
    """Like :meth:`ActiveQueries.decode`, cached for epochs without changes."""
    return ActiveQueries.decode(data)
