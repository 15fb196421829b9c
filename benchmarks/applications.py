"""The artifact that the measures over HTTP submit: generated rows at a rate, counted and summed per key."""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import generator


class Parameters(BaseModel):
    """``rate`` in rows per second (none: unlimited), ``bound`` in rows (none: unbounded)."""

    keys: int
    rate: float | None = None
    bound: int | None = None


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("benchmark")
    columns = {"key": f"id % {parameters.keys}", "value": "noise % 1000"}
    rows = pipeline.read("rows", generator.source(columns, rate=parameters.rate, bound=parameters.bound))
    rows.key_by("key").aggregate("counts", rows="count(*)", total="sum(value)")
    return pipeline
