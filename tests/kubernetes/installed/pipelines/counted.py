"""Each row goes to the sink, and is counted: of both it can be told whether one is missing, or was taken twice."""

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
