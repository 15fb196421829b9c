"""The application of the fault tests of shards: writes its rows by key, in several transactions per epoch.

Runs as an artifact, so it does not import the tests.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline, secret
from epochal.connectors import dbms, files


class Parameters(BaseModel):
    """``password``: a file with the password."""

    input: str
    url: str
    password: str
    shards: int


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    schema = "event bigint, sensor string, value int"
    events = pipeline.read("events", files.source(parameters.input, format="json", schema=schema, max_files=1))
    database = {"url": parameters.url, "password": secret(f"file:{parameters.password}"), "create": True}
    events.write("spread", dbms.sink(table="spread_rows", keys="event", shards=parameters.shards, **database))
    totals = events.key_by("sensor").aggregate("totals", events="count(*)", total="sum(value)")
    totals.write("totals", dbms.sink(table="totals", keys="sensor", shards=parameters.shards, **database))
    return pipeline
