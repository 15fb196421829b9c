"""The application that is upgraded and rescaled while it runs: one operator of each state scope, over files.

It runs as an artifact, so it must not import the tests. Tests change its text.
"""

from __future__ import annotations

from pydantic import BaseModel

from epochal import BroadcastProcess, KeyedProcess, ListState, MapState, Pipeline, UnkeyedProcess, ValueState
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


class Kept(UnkeyedProcess):
    """Appends every tenth event to the list of the subtask that receives it."""

    events = ListState("event bigint", scope="operator")
    output = "event bigint"

    def process(self, rows, ctx):
        for row in rows:
            if row.event % 10 == 0:
                self.events.append(row.event)


class Steered(BroadcastProcess):
    """Stores the last control row by digit, and the number of rows of each sensor."""

    last = MapState(key="digit int", value="event bigint", scope="broadcast")
    rows = ValueState("count bigint")
    output = "sensor string"

    def process_broadcast(self, row, ctx):
        self.last.put(row.event % 7, row.event)

    def process(self, key, rows, ctx):
        self.rows.set((self.rows.get() or 0) + len(rows))


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("sensors")
    schema = "event bigint, sensor string, value int"
    events = pipeline.read("events", files.source(f"{parameters.input}/*.json", format="json", schema=schema))
    events.process_any(Kept, name="kept")
    control = events.where("event % 5 = 0")
    events.connect(control, broadcast=True, order_by="event").key_by("sensor").process(Steered, name="steered")
    by_sensor = events.with_columns(value=f"value * {parameters.factor}").key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)")
    totals.write("out", files.sink(f"{parameters.output}/totals", format="json", mode="updates"))
    longest = by_sensor.process(Longest, name="longest")
    longest.write("longest", files.sink(f"{parameters.output}/longest", format="json"))
    return pipeline
