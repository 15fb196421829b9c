"""The application of the fault tests of files on object stores: reads from a bucket and writes to two folders in it.

Runs as an artifact, so it does not import the tests. The credentials are in files: a JVM that tests share has another
environment.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from epochal import Pipeline, secret
from epochal.connectors import files


class Parameters(BaseModel):
    """``source`` and ``output`` are URLs of folders. ``input`` is the local folder with the same files. ``key`` and
    ``secret`` are files."""

    input: str
    source: str
    output: str
    endpoint: str
    region: str
    key: str
    secret: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    where: dict[str, Any] = {
        "endpoint": parameters.endpoint,
        "region": parameters.region,
        "access_key_id": secret(f"file:{parameters.key}"),
        "secret_access_key": secret(f"file:{parameters.secret}"),
    }
    schema = "event bigint, sensor string, value int"
    source = files.source(parameters.source, format="json", schema=schema, max_files=1, names_rise=True, **where)
    events = pipeline.read("events", source)
    by_sensor = events.key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)", highest="max(value)")
    totals.write("totals", files.sink(f"{parameters.output}/totals", mode="updates", **where))
    events.where("value > 50").write("late", files.sink(f"{parameters.output}/late", **where))
    return pipeline
