"""The application: a table in PostgreSQL with one row per route, the totals of all flights so far.

Flights are read from another table. A route is deleted if all of its flights were cancelled.
``python -m examples.postgresql.demo`` runs it with a private database.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from epochal import Pipeline, secret
from epochal.connectors import dbms

UNUSED_AFTER_CANCELLATIONS = 3


class Parameters(BaseModel):
    """The address of the database, and a reference to its password."""

    url: str = Field(description="postgresql://user@host:port/database")
    password: str = Field(description="reference to the password: env:NAME or file:/path")
    settle_seconds: float = Field(
        default=1.0, ge=0, description="maximum time between a writer's insert and its commit"
    )


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("routes")
    database: dict[str, Any] = {"url": parameters.url, "password": secret(parameters.password)}
    flights = pipeline.read(
        "flights", dbms.source(table="flights", column="id", settle_seconds=parameters.settle_seconds, **database)
    )
    airports = pipeline.table("airports", dbms.table(table="airports", **database))

    routes = flights.key_by("origin", "destination").aggregate(
        "routes",
        flights="count(delay)",
        cancelled="count(*) - count(delay)",
        average_delay="avg(delay)",
        worst_delay="max(delay)",
    )
    named = routes.join(airports.select("code AS destination", "airport"), on="destination", how="left")
    changes = named.select(
        "*",
        f"IF(flights = 0 AND cancelled >= {UNUSED_AFTER_CANCELLATIONS}, 'delete', 'upsert') AS change",
    )
    changes.write(
        "routes",
        dbms.sink(table="routes", keys=["origin", "destination"], operation="change", create=True, **database),
    )
    return pipeline
