"""The application that is killed: two stateful operators over one source, each with a files sink.

It runs as an artifact, so it imports nothing of the tests. Rows with a negative value make it misbehave on purpose.
"""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

from pydantic import BaseModel

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import files

RAISES, SLEEPS = -1, -2


class Parameters(BaseModel):
    """``calls``: a folder in which every run of a subtask leaves a file, whether or not it came to count."""

    input: str
    output: str
    calls: str | None = None
    max_files: int = 1
    sleep_seconds: float = 30.0


class Streaks(KeyedProcess):
    """How many events in a row were late, by sensor; says so for every event."""

    state = ValueState("late int, longest int")
    output = "event bigint, sensor string, late int"
    order_by = "event"
    calls: str | None = None
    sleep_seconds = 30.0

    def __init__(self):
        self.noted = False

    def process(self, key, rows, ctx):
        self.note_call(ctx)
        before = self.state.get()
        late, longest = before if before else (0, 0)
        for row in rows:
            if row.value == RAISES:
                raise LookupError(f"no sensor can read {row.value}")
            if row.value == SLEEPS:
                time.sleep(self.sleep_seconds)
            late = late + 1 if row.value > 50 else 0
            longest = max(longest, late)
            yield row.event, key.sensor, late
        self.state.set(late, longest)

    def note_call(self, ctx):
        if self.calls and not self.noted:
            Path(self.calls, f"{ctx.epoch}-{ctx.subtask}-{uuid4().hex}").touch()
            self.noted = True


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    schema = "event bigint, sensor string, value int"
    source = files.source(parameters.input, format="json", schema=schema, max_files=parameters.max_files)
    by_sensor = pipeline.read("events", source).key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)", highest="max(value)")
    totals.write("totals", files.sink(f"{parameters.output}/totals"))
    streaks = by_sensor.process(Streaks, calls=parameters.calls, sleep_seconds=parameters.sleep_seconds)
    streaks.write("streaks", files.sink(f"{parameters.output}/streaks"))
    return pipeline
