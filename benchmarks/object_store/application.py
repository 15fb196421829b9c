"""The artifact of these measures: one file an epoch, counted and summed per key, and written to a local folder."""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files


class Parameters(BaseModel):
    """``folder``: Parquet files with the columns ``key`` and ``value``."""

    folder: str
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("benchmark")
    source = files.source(parameters.folder, format="parquet", schema="key long, value long", max_files=1)
    counts = pipeline.read("rows", source).key_by("key").aggregate("counts", rows="count(*)", total="sum(value)")
    counts.write("out", files.sink(parameters.output, mode="updates"))
    return pipeline
