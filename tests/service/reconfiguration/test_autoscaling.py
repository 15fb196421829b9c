"""A real driver whose input rate is raised: it falls behind, is scaled to two subtasks automatically, and catches
up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

PIPELINE = '''
import time

from pydantic import BaseModel

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import files


class Slow(KeyedProcess):
    """Takes 20 ms for each row: one subtask processes at most fifty rows a second."""

    seen = ValueState("count int")
    output = "event bigint"

    def process(self, key, rows, ctx):
        for row in rows:
            time.sleep(0.02)
        self.seen.set((self.seen.get() or 0) + len(rows))


class Parameters(BaseModel):
    input: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("slow")
    source = files.source(parameters.input + "/*.json", format="json", schema="event bigint")
    events = pipeline.read("events", source)
    events.key_by("event").process(Slow, name="slow")
    return pipeline
'''
RATE = 60
"""Rows a second: more than one subtask can process, and less than two."""
CONFIGURATION = {
    "parallelism": 1,
    "max_parallelism": 16,
    "epoch_interval_seconds": 0.1,
    "max_records_per_epoch": 300,
    "autoscaling": {"greatest": 2, "grow_after_seconds": 10, "cool_down_seconds": 5},
}


class Input:
    """Writes a file of rows each second, until the end of the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self.rate = 5
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Input:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _feed(self) -> None:
        while not self._ended.wait(1.0):
            first, count = self.rows, self.rate
            hidden = self.folder / f".{first}"
            hidden.write_text("".join(json.dumps({"event": event}) + "\n" for event in range(first, first + count)))
            hidden.rename(self.folder / f"{first:08}.json")
            self.rows += count


def test_parallelism_follows_a_raised_input_rate(plane: ControlPlane, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE)
    with plane.client() as client, Input(folder) as input:
        artifact = client.artifacts.upload(file).sha256
        client.applications.create("slow", artifact, parameters={"input": str(folder)}, configuration=CONFIGURATION)
        application = client.application("slow")
        client.applications.wait("slow", timeout_seconds=300)
        until(application, lambda: committed_rows(application) > 20)
        assert application.get().configuration["parallelism"] == 1

        input.rate = RATE
        until(application, lambda: application.get().configuration["parallelism"] == 2)
        (operation, *_) = [item for item in client.operations.list() if item.kind == "rescale"]
        # The driver completes the operation after the epoch that changed the parallelism.
        assert client.operations.wait(operation, timeout_seconds=60).state == "succeeded"
        version, *_ = application.versions.list()
        assert version.created_by == "autoscaler" and "its subtasks were busy for" in str(version.message)
        behind = input.rows - committed_rows(application)
        assert behind > RATE
        until(application, lambda: input.rows - committed_rows(application) < behind / 2)
        found = application.load()
        assert found.parallelism == 2 and found.busy_share > 0 and "slow" in found.operators
        assert "maximum parallelism" in plane.run("show", "slow").stdout or found.busy_share < 0.7
        client.operations.wait(client.applications.stop("slow"), timeout_seconds=60)
        assert len(application.executions.list()[0].attempts) == 1


def committed_rows(application: ApplicationHandle) -> int:
    """Number of rows in committed epochs."""
    return sum(epoch.rows_in or 0 for epoch in application.epochs.list(None, "committed"))


def until(application: ApplicationHandle, holds: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "\n".join(application.logs(tail=60))
        time.sleep(0.5)
