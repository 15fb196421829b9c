"""Standing queries of an application."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from epochal.wire.bodies import ALL_FIELDS, Answer, Body, Open

QueryState = Literal["active", "paused"]
QueryNumber = Annotated[int, Field(ge=1, le=2**62)]


class AddQuery(Body):
    query: Annotated[str, StringConstraints(max_length=20_000)] = Field(
        description="`SELECT device, count(*) AS n WHERE country = 'SE' GROUP BY device WINDOW '5 minutes'`; at most "
        "4,000 characters."
    )
    operator: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None,
        description="Name of the `standing_queries` operator; may be null if the application has only one.",
    )
    expires_after: Annotated[str, StringConstraints(max_length=100)] | None = Field(
        default=None, description="Interval such as `7 days` after which the query is dropped; null: never."
    )


class QueryWindow(Answer):
    """A window of event time; the end is exclusive."""

    start: datetime
    end: datetime


class StandingQueryAnswer(Answer):
    """A query in the latest committed epoch."""

    model_config = ALL_FIELDS

    id: int
    operator: str = Field(description="Name of the `standing_queries` operator, and of the state table of results.")
    query: str = Field(description="Text of the query.")
    owner: str = Field(description="The name of the token that added it.")
    state: Open[QueryState]
    epoch: int = Field(description="The first epoch that includes the query.")
    since: datetime | None = Field(
        description="Start time of the first answered window; null: all windows are answered."
    )
    first_window: QueryWindow | None = Field(
        default=None, description="The first answered window; it is answered when the watermark reaches its end."
    )
    watermark: datetime | None = Field(
        default=None, description="Windows up to this time have been answered; null: none, or all."
    )
    expires_at: datetime | None = Field(description="Time at which the query is dropped; null: never.")
    cost: int = Field(description="Cost of the query, at most 250; see docs/reference/standing-queries.md.")


class StandingQueriesAnswer(Answer):
    """Queries by id. ``epoch``: the latest committed epoch; null before the first."""

    items: list[StandingQueryAnswer]
    epoch: int | None


class QueryResult(Answer):
    """Result for a group in a closed window."""

    window_start: datetime
    window_end: datetime = Field(description="End of the window, exclusive.")
    group: dict[str, Any] = Field(description="Group columns by name; empty without grouping.")
    values: dict[str, Any] | None = Field(description="Values by name; null if the whole window failed.")
    error: str | None = Field(description="Reason why a value or the whole window could not be computed.")
    answered_at: datetime = Field(description="Time of the epoch that emitted the result; `keep` counts from it.")


class QueryResults(Answer):
    """Results by window and group. All pages are read from the epoch of the first page."""

    query: int
    branch: str
    epoch: int
    items: list[QueryResult]
    next_cursor: str | None
