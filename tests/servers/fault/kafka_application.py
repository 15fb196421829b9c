"""The application of the Kafka fault tests: writes rows to one topic and totals by key to another.

Runs as an artifact, so it does not import the tests.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files, kafka


class Parameters(BaseModel):
    """``rows`` and ``totals`` are topics."""

    input: str
    servers: str
    rows: str
    totals: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    schema = "event bigint, sensor string, value int"
    events = pipeline.read("events", files.source(parameters.input, format="json", schema=schema, max_files=1))
    events.write("rows", kafka.sink(parameters.servers, parameters.rows, key="sensor"))
    totals = events.key_by("sensor").aggregate("totals", events="count(*)", total="sum(value)")
    # Transactions as small as possible: one per batch of a subtask.
    totals.write("totals", kafka.sink(parameters.servers, parameters.totals, key="sensor", transaction_records=1))
    return pipeline
