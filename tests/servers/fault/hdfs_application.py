"""The application of the HDFS fault tests: reads from HDFS and writes to two folders of HDFS.

Runs as an artifact, so it does not import the tests.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import hdfs


class Parameters(BaseModel):
    """``input`` and ``output`` are folders of HDFS."""

    url: str
    user: str
    input: str
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    where = {"user": parameters.user, "timeout_seconds": 10}
    schema = "event bigint, sensor string, value int"
    source = hdfs.source(parameters.url, parameters.input, format="json", schema=schema, max_files=1, **where)
    events = pipeline.read("events", source)
    by_sensor = events.key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)", highest="max(value)")
    totals.write("totals", hdfs.sink(parameters.url, f"{parameters.output}/totals", mode="updates", **where))
    late = events.where("value > 50")
    late.write("late", hdfs.sink(parameters.url, f"{parameters.output}/late", **where))
    return pipeline
