"""The application: reads flights from daily folders in HDFS, and writes totals by day and airline to HDFS.

``python -m examples.hdfs.demo`` runs it with a private HDFS.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from epochal import Pipeline
from epochal.connectors import hdfs

SCHEMA = "time timestamp_ntz, carrier string, flight int, tail string, origin string, destination string, delay int"


class Parameters(BaseModel):
    """The address of HDFS, and the folders."""

    url: str = Field(description="the NameNode's HTTP address, http://namenode:9870; several are separated by ';'")
    user: str = Field(description="user name, for clusters without Kerberos")
    flights: str = Field(description="folder with one folder of JSON lines files per day")
    airlines: str = Field(description="Parquet file of airlines: carrier, airline")
    output: str = Field(description="folder for the table days")


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("days")
    where: dict[str, Any] = {"url": parameters.url, "user": parameters.user}
    source = hdfs.source(path=f"{parameters.flights}/*/*.json", format="json", schema=SCHEMA, max_files=1, **where)
    flights = pipeline.read("flights", source)
    airlines = pipeline.table("airlines", hdfs.table(path=parameters.airlines, **where))

    days = (
        flights.select("CAST(time AS date) AS day", "carrier", "delay")
        .key_by("day", "carrier")
        .aggregate("days", flights="count(*)", arrived="count(delay)", delay="sum(delay)", worst="max(delay)")
    )
    named = days.join(airlines, on="carrier", how="left")
    named.write("days", hdfs.sink(path=parameters.output, mode="updates", **where))
    return pipeline
