"""The application of the fault tests of files on object stores: reads from a bucket and writes to two folders in it.

Runs as an artifact, so it does not import the tests. Endpoint and credentials are in the environment.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files


class Parameters(BaseModel):
    """``source`` and ``output`` are URLs of folders. ``input`` is the local folder with the same files."""

    input: str
    source: str
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    schema = "event bigint, sensor string, value int"
    source = files.source(parameters.source, format="json", schema=schema, max_files=1, names_rise=True)
    events = pipeline.read("events", source)
    by_sensor = events.key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)", highest="max(value)")
    totals.write("totals", files.sink(f"{parameters.output}/totals", mode="updates"))
    events.where("value > 50").write("late", files.sink(f"{parameters.output}/late"))
    return pipeline
