"""The corrected application: converts amounts in cents. The state table has the same columns."""

from __future__ import annotations

from pydantic import BaseModel, Field

from epochal import Pipeline
from epochal.connectors import dbms, files

SCHEMA = "shop string, day date, amount decimal(12,2), unit string"


class Parameters(BaseModel):
    input: str = Field(description="a folder to which each day's sales are added")
    output: str = Field(description="a folder for the changes")
    database: str = Field(description="sqlite:////path/to/file")


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("sales")
    sales = pipeline.read("sales", files.source(f"{parameters.input}/*.json", format="json", schema=SCHEMA))
    euros = sales.with_columns(amount="CAST(IF(unit = 'cents', amount / 100, amount) AS decimal(12,2))")
    revenue = euros.key_by("shop").aggregate("revenue", sales="count(*)", total="sum(amount)")
    revenue.write("table", dbms.sink(parameters.database, "revenue", keys="shop", create=True))
    revenue.write("folder", files.sink(parameters.output, format="json", mode="updates"))
    return pipeline
