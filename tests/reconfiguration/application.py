"""The application that is upgraded and rescaled while it runs: an aggregate and a process operator over files.

It runs as an artifact, so it imports nothing of the tests. Its text is changed by them: see ``version``.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import files


class Parameters(BaseModel):
    input: str
    output: str
    factor: int = 1


class Longest(KeyedProcess):
    state = ValueState("longest int")
    output = "sensor string, longest int"

    def process(self, key, rows, ctx):
        before = self.state.get()
        longest = max([row.value for row in rows] + ([] if before is None else [before]))
        self.state.set(longest)
        yield key.sensor, longest


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("sensors")
    schema = "event bigint, sensor string, value int"
    events = pipeline.read("events", files.source(f"{parameters.input}/*.json", format="json", schema=schema))
    by_sensor = events.with_columns(value=f"value * {parameters.factor}").key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)")
    totals.write("out", files.sink(f"{parameters.output}/totals", format="json", mode="updates"))
    longest = by_sensor.process(Longest, name="longest")
    longest.write("longest", files.sink(f"{parameters.output}/longest", format="json"))
    return pipeline
