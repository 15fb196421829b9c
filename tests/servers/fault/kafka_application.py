"""The application that is killed while it writes to Kafka: its rows to one topic, totals by key to another.

It runs as an artifact, so it imports nothing of the tests.
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
    # Cut in parts, which are as small as they can be: the batches of the subtasks.
    totals.write("totals", kafka.sink(parameters.servers, parameters.totals, key="sensor", transaction_records=1))
    return pipeline
