"""Writes each row to the sink and counts it in state; both show missing and duplicate rows."""

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files, generator


class Parameters(BaseModel):
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("counted")
    rows = pipeline.read("rows", generator.source({"number": "id", "digit": "id % 10"}, rate=50))
    rows.key_by("digit").aggregate("counts", rows="count(*)")
    rows.write("out", files.sink(parameters.output))
    return pipeline
