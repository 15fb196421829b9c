"""The application that is killed in tests: two stateful operators over one source, each with a files sink.

It runs as an artifact, so it must not import the tests.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from uuid import uuid4

from pydantic import BaseModel

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import files

UNREADABLE = -1


class Parameters(BaseModel):
    """``calls``: a folder in which every run of a subtask leaves a file, whether or not its output was committed.
    The name of the file contains the epoch, the subtask and the parent process of the Python worker, which
    differs between executors.

    ``raises``: whether a value of -1 is an error, as in the first version of the author's code. ``slow``: a file; where
    it exists, each run of a subtask of ``streaks`` takes a second longer.
    """

    input: str
    output: str
    calls: str
    raises: bool = True
    slow: str = ""


class Streaks(KeyedProcess):
    """Number of consecutive late events by sensor, returned for every event."""

    state = ValueState("late int, longest int")
    output = "event bigint, sensor string, late int"
    order_by = "event"
    calls = ""
    raises = True
    slow = ""

    def __init__(self):
        self.noted = Event()

    def process(self, key, rows, ctx):
        self.note_call(ctx)
        before = self.state.get()
        late, longest = before if before else (0, 0)
        for row in rows:
            if self.raises and row.value == UNREADABLE:
                raise LookupError(f"no sensor can read {row.value}")
            late = late + 1 if row.value > 50 else 0
            longest = max(longest, late)
            yield row.event, key.sensor, late
        self.state.set(late, longest)

    def note_call(self, ctx):
        if not self.noted.is_set():
            Path(self.calls, f"{ctx.epoch}-{ctx.subtask}-{os.getppid()}-{uuid4().hex}").touch()
            self.noted.set()
            if self.slow and Path(self.slow).exists():
                time.sleep(1.0)


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("faults")
    schema = "event bigint, sensor string, value int"
    source = files.source(parameters.input, format="json", schema=schema, max_files=1)
    by_sensor = pipeline.read("events", source).key_by("sensor")
    totals = by_sensor.aggregate("totals", events="count(*)", total="sum(value)", highest="max(value)")
    totals.write("totals", files.sink(f"{parameters.output}/totals", mode="updates"))
    streaks = by_sensor.process(Streaks, calls=parameters.calls, raises=parameters.raises, slow=parameters.slow)
    streaks.write("streaks", files.sink(f"{parameters.output}/streaks"))
    return pipeline
