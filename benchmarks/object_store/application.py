"""The artifact of these measures: one file an epoch, counted and summed per key."""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files


class Parameters(BaseModel):
    """``folder``: Parquet files with the columns ``key`` and ``value``. ``output``: a local folder; none: no sink."""

    folder: str
    output: str | None = None


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("benchmark")
    source = files.source(parameters.folder, format="parquet", schema="key long, value long", max_files=1)
    counts = pipeline.read("rows", source).key_by("key").aggregate("counts", rows="count(*)", total="sum(value)")
    if parameters.output is not None:
        counts.write("out", files.sink(parameters.output, mode="updates"))
    return pipeline
