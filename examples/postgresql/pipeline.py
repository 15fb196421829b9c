"""The application: one row per route in a table of PostgreSQL, always what the flights so far come to.

The flights come from a table as well, row after row; a route whose flights were all cancelled is taken out again.
``python -m examples.postgresql.demo`` runs it, with a database of its own.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from epochal import Pipeline, secret
from epochal.connectors import dbms

UNUSED_AFTER_CANCELLATIONS = 3


class Parameters(BaseModel):
    """Where the database is; never its password, only where that is."""

    url: str = Field(description="postgresql://user@host:port/database")
    password: str = Field(description="where the password is: env:NAME or file:/path")
    settle_seconds: float = Field(default=1.0, ge=0, description="how long a writer may take to commit")


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
