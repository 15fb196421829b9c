"""The application of the chaos runs: reads Kafka, runs two stateful operators and writes to six kinds of sinks.

Runs as an artifact, so it does not import the tests.
"""

from __future__ import annotations

import os

from pydantic import BaseModel

from epochal import KeyedProcess, Pipeline, ValueState, secret
from epochal.connectors import dbms, delta, files, hdfs, iceberg, kafka
from epochal.snapshots import task_files

# Files of this application are small: with a lower limit, tasks write some of them.
task_files.TASK_BYTES = int(os.environ.get("CHAOS_TASK_BYTES", task_files.TASK_BYTES))


class Parameters(BaseModel):
    """``password``: a file with the PostgreSQL password. ``tables``: folder or URL of the tables; ``catalog``: file of
    the Iceberg catalog."""

    servers: str
    input: str
    topic: str
    database: str
    password: str
    name_node: str
    user: str
    hdfs: str
    folder: str
    tables: str
    catalog: str


class Streaks(KeyedProcess):
    """Outputs for each event the number of consecutive late events of its sensor."""

    state = ValueState("late int, longest int")
    output = "event bigint, sensor string, late int"
    order_by = "event"

    def process(self, key, rows, ctx):
        late, longest = self.state.get() or (0, 0)
        for row in rows:
            late = late + 1 if row.value > 50 else 0
            longest = max(longest, late)
            yield row.event, key.sensor, late
        self.state.set(late, longest)


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("chaos")
    schema = "event bigint, sensor string, value int"
    source = kafka.source(parameters.servers, parameters.input, format="json", schema=schema)
    by_sensor = pipeline.read("events", source).key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)", highest="max(value)")
    totals.write("topic", kafka.sink(parameters.servers, parameters.topic, key="sensor"))
    password = secret(f"file:{parameters.password}")
    table = dbms.sink(parameters.database, "totals", keys="sensor", create=True, password=password)
    totals.write("table", table)
    streaks = by_sensor.process(Streaks)
    streaks.write("hdfs", hdfs.sink(parameters.name_node, parameters.hdfs, format="json", user=parameters.user))
    streaks.write("files", files.sink(parameters.folder, format="parquet"))
    streaks.write("delta", delta.sink(f"{parameters.tables}/delta"))
    warehouse = parameters.tables if "://" in parameters.tables else f"file://{parameters.tables}"
    catalog = {"type": "sql", "uri": f"sqlite:///{parameters.catalog}", "warehouse": f"{warehouse}/iceberg"}
    if "://" in parameters.tables:
        catalog["s3.endpoint"] = os.environ["AWS_ENDPOINT_URL"]
    streaks.write("iceberg", iceberg.sink("chaos.streaks", catalog=catalog, commit_every="1 s"))
    return pipeline
