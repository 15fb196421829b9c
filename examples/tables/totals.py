"""A second application: follows the Delta table of the first one, and keeps the delays of each carrier."""

from __future__ import annotations

from pydantic import BaseModel, Field

from epochal import Pipeline, secret
from epochal.connectors import delta, files


class Parameters(BaseModel):
    arrivals: str = Field(description="folder of the Delta table: s3://bucket/arrivals")
    endpoint: str = Field(description="URL of the store")
    region: str = "us-east-1"
    secrets: str = Field(description="folder with the files 'key' and 'secret'")
    output: str = Field(description="folder of the totals")


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("carriers")
    arrivals = pipeline.read(
        "arrivals",
        delta.source(
            parameters.arrivals,
            bounded=True,
            endpoint=parameters.endpoint,
            region=parameters.region,
            access_key_id=secret(f"file:{parameters.secrets}/key"),
            secret_access_key=secret(f"file:{parameters.secrets}/secret"),
        ),
    )
    totals = arrivals.key_by("carrier").aggregate("totals", flights="count(*)", delay="sum(delay)")
    totals.write("totals", files.sink(parameters.output, mode="updates"))
    return pipeline
