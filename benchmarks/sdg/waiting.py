"""The application that ``straggler`` submits. Each row waits, as for the answer of a service, and uses no core.

Thus many subtasks can run in parallel on a machine with few cores, and one of them can behave as on a slow machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import files


class Waiting(KeyedProcess):
    """Once the file ``slow`` exists, subtask ``slow_subtask`` waits ``factor`` times as long for each row."""

    slow = ""
    slow_subtask = 1
    factor = 1.0
    row_seconds = 0.0

    seen = ValueState("rows bigint")
    output = "event bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        is_slow = ctx.subtask == self.slow_subtask and Path(self.slow).exists()
        time.sleep(len(rows) * self.row_seconds * (self.factor if is_slow else 1))
        self.seen.set((self.seen.get() or 0) + len(rows))


class Parameters(BaseModel):
    """``input``: folder of JSON files with a column ``event``; ``files``: maximum number of files of an epoch."""

    input: str
    files: int
    slow: str
    slow_subtask: int
    factor: float
    row_seconds: float


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("waiting")
    source = files.source(
        f"{parameters.input}/*.json", format="json", schema="event bigint", max_files=parameters.files
    )
    settings = parameters.model_dump(include={"slow", "slow_subtask", "factor", "row_seconds"})
    pipeline.read("events", source).key_by("event").process(Waiting, name="waiting", **settings)
    return pipeline
