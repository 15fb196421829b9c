"""Standing queries of an application."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from epochal.wire.bodies import ALL_SAID, Answer, Body, Open

QueryState = Literal["active", "paused"]
QueryNumber = Annotated[int, Field(ge=1, le=2**62)]


class AddQuery(Body):
    query: Annotated[str, StringConstraints(max_length=20_000)] = Field(
        description="`SELECT device, count(*) AS n WHERE country = 'SE' GROUP BY device WINDOW '5 minutes'`; at most "
        "4,000 characters are taken."
    )
    operator: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="The name given to `standing_queries`; null where the application has one."
    )
    expires_after: Annotated[str, StringConstraints(max_length=100)] | None = Field(
        default=None, description="An interval, such as `7 days`: the query is dropped then. Null: never."
    )


class QueryWindow(Answer):
    """A window of event time, without its end."""

    start: datetime
    end: datetime


class StandingQueryAnswer(Answer):
    """A query as the latest committed epoch runs with it."""

    model_config = ALL_SAID

    id: int
    operator: str = Field(description="The name given to `standing_queries`, which is the state table of results.")
    query: str = Field(description="Its text.")
    owner: str = Field(description="The name of the token that added it.")
    state: Open[QueryState]
    epoch: int = Field(description="The first epoch that ran with it.")
    since: datetime | None = Field(description="Windows that begin earlier are not answered; null: all are.")
    first_window: QueryWindow | None = Field(
        default=None, description="The first that begins then; it is answered when the watermark has reached its end."
    )
    watermark: datetime | None = Field(
        default=None, description="Windows that end by then have been answered; null: none yet, or all."
    )
    expires_at: datetime | None = Field(description="When it is dropped; null: never.")
    cost: int = Field(description="What it costs, of the 250 that a query may; docs/standing-queries.md says how.")


class StandingQueriesAnswer(Answer):
    """By id. ``epoch``: the one that runs with them; null before the first."""

    items: list[StandingQueryAnswer]
    epoch: int | None


class QueryResult(Answer):
    """The answer for a group in a window that has closed."""

    window_start: datetime
    window_end: datetime = Field(description="The window is without it.")
    group: dict[str, Any] = Field(description="The group columns by name; empty where the query has none.")
    values: dict[str, Any] | None = Field(description="By name; null where the whole window has an error.")
    error: str | None = Field(description="Why a value, or the whole window, cannot be told; mostly null.")
    answered_at: datetime = Field(description="The time of the epoch in which it came out; `keep` counts from then.")


class QueryResults(Answer):
    """By window and group. All pages are of the epoch of the first."""

    query: int
    branch: str
    epoch: int
    items: list[QueryResult]
    next_cursor: str | None
