"""The pipeline of drivers without Spark: after epoch n the key ``all`` has the value n."""

from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import generator


class Parameters(BaseModel):
    folder: str
    pause: float


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("totals")
    rows = pipeline.read("rows", generator.source({"name": "'all'"}, rate=1))
    rows.key_by("name").aggregate("totals", total="count(*)")
    return pipeline
