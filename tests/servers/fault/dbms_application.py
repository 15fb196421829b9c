"""The application of the PostgreSQL fault tests: writes rows, totals by key, and rows by two-phase commit.

Runs as an artifact, so it does not import the tests.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline, secret
from epochal.connectors import dbms, files


class Parameters(BaseModel):
    """``password``: a file with the password, which executors can read, too."""

    input: str
    url: str
    password: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    schema = "event bigint, sensor string, value int"
    events = pipeline.read("events", files.source(parameters.input, format="json", schema=schema, max_files=1))
    database = {"url": parameters.url, "password": secret(f"file:{parameters.password}"), "create": True}
    events.write("rows", dbms.sink(table="rows_of_epochs", **database))
    events.write("checked", dbms.two_phase_sink(table="checked_rows", **database))
    totals = events.key_by("sensor").aggregate("totals", events="count(*)", total="sum(value)")
    totals.write("totals", dbms.sink(table="totals", keys="sensor", **database))
    return pipeline
