"""The application of the fault tests of state in S3. Runs as an artifact, so it does not import the tests."""

from __future__ import annotations

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files


class Parameters(BaseModel):
    folder: str
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("texts")
    schema = "k string, text string"
    source = files.source(parameters.folder, format="json", schema=schema, max_files=1)
    totals = pipeline.read("events", source).key_by("k").aggregate("totals", events="count(*)", longest="max(text)")
    totals.write("out", files.sink(parameters.output, format="json", mode="updates"))
    return pipeline
