"""The application: reads flights from a topic, and appends them to a Delta and an Iceberg table.

- ``arrivals``, a Delta table partitioned by day: every flight that arrived;
- ``flights.late``, an Iceberg table: the late flights, committed together every ten seconds.

``python -m examples.tables.demo`` runs it with a private broker and a private store.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from epochal import Pipeline, secret
from epochal.connectors import delta, iceberg, kafka

SCHEMA = "time timestamp, carrier string, flight int, tail string, origin string, destination string, delay int"


class Parameters(BaseModel):
    """Addresses of the broker, the tables and the catalog. The keys of the store are files in ``secrets``."""

    servers: str = Field(description="host:port,host:port")
    arrivals: str = Field(description="folder of the Delta table: s3://bucket/arrivals")
    catalog: str = Field(description="URL of the Iceberg REST catalog")
    warehouse: str = Field(description="warehouse of the catalog")
    endpoint: str = Field(description="URL of the store")
    region: str = "us-east-1"
    secrets: str = Field(description="folder with the files 'key', 'secret' and 'credential'")
    late_minutes: int = Field(default=15, ge=0, description="minutes of delay from which a flight counts as late")


def build(parameters: Parameters) -> Pipeline:
    key, password = secret(f"file:{parameters.secrets}/key"), secret(f"file:{parameters.secrets}/secret")
    pipeline = Pipeline("flight-tables")
    flights = pipeline.read("flights", kafka.source(parameters.servers, "flights", schema=SCHEMA))
    arrived = flights.where("delay IS NOT NULL")
    store: dict[str, Any] = {
        "endpoint": parameters.endpoint,
        "region": parameters.region,
        "access_key_id": key,
        "secret_access_key": password,
    }
    arrivals = arrived.with_columns(day="to_date(time)")
    arrivals.write("arrivals", delta.sink(parameters.arrivals, partition_by="day", **store))

    late = arrived.where(f"delay >= {parameters.late_minutes}").select("time", "carrier", "flight", "tail", "delay")
    catalog = {
        "type": "rest",
        "uri": parameters.catalog,
        "warehouse": parameters.warehouse,
        "credential": secret(f"file:{parameters.secrets}/credential"),
        "s3.endpoint": parameters.endpoint,
        "s3.region": parameters.region,
        "s3.access-key-id": key,
        "s3.secret-access-key": password,
    }
    late.write("late", iceberg.sink("flights.late", catalog=catalog, partition_by="day(time)", commit_every="10 s"))
    return pipeline
