"""The artifact of large state: sums of ten columns for each key, from files with one slice each."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files

VALUES = tuple(f"value{number}" for number in range(10))
SCHEMA = ", ".join(f"{name} long" for name in ("key", *VALUES))


class Parameters(BaseModel):
    folder: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("wide")
    source = files.source(parameters.folder, format="parquet", schema=SCHEMA, max_files=1)
    rows = pipeline.read("rows", source)
    sums: dict[str, Any] = {name: f"sum({name})" for name in VALUES}
    rows.key_by("key").aggregate("wide", **sums)
    return pipeline
