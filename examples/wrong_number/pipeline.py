"""Revenue by shop, in state, in a database table and as a folder of changes. The first version.

``python -m examples.wrong_number.demo`` runs it; its error shows on the fourth day.
"""

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
    revenue = sales.key_by("shop").aggregate("revenue", sales="count(*)", total="sum(amount)")
    revenue.write("table", dbms.sink(parameters.database, "revenue", keys="shop", create=True))
    revenue.write("folder", files.sink(parameters.output, format="json", mode="updates"))
    return pipeline
