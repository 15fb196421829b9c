"""State with ``durable=False`` under a control plane and Spark: the driver is killed, with and without its caches."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import control_plane, process_id

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 240
PIPELINE = '''
import json

from epochal import KeyedProcess, Pipeline, ValueState


class Visits(KeyedProcess):
    """Returns the number of visits of a user, from durable state and from state that is not durable."""

    kept = ValueState("count bigint")
    seen = ValueState("count bigint", durable=False)
    output = "request_id string, value string, error string"
    order_by = "sequence"

    def process(self, key, rows, ctx):
        for row in rows:
            self.kept.set((self.kept.get() or 0) + 1)
            self.seen.set((self.seen.get() or 0) + 1)
            yield row.request_id, json.dumps([self.kept.get(), self.seen.get()]), None


pipeline = Pipeline("visits")
visits = pipeline.entry("visit", {"user": "string"}, returns="array<bigint>")
pipeline.answer("visit", visits.key_by("user").process(Visits, name="visits"))
'''


def test_restarted_driver_reads_its_caches_and_reports_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(PIPELINE)
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:
        sha256 = client.artifacts.upload(tmp_path / "visits.py").sha256
        configuration = {"parallelism": 1, "restart": {"backoff_seconds": 0.1}}
        client.applications.create("visits", sha256, configuration=configuration)
        application = client.application("visits")
        assert [visit(application)[0] for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]

        kill_driver(application)
        assert visit(application) == ([4, 4], ())  # another process reads the cache folder

        (cache,) = (plane.home / "work").glob("*/state/undurable")
        shutil.rmtree(cache)
        kill_driver(application)
        assert visit(application) == ([5, 1], (0,))
        assert visit(application) == ([6, 2], ())

        client.operations.wait(client.applications.stop("visits"))
        client.operations.wait(client.applications.start("visits"))
        assert visit(application) == ([7, 1], (0,))
        assert "begin empty" in "".join(application.logs(tail=1000))


def visit(application: ApplicationHandle) -> tuple[list[int], tuple[int, ...]]:
    """The answer of the entry, and the subtasks that began with empty state in the epoch of the call, from its
    manifest."""
    answer = application.entries["visit"].call(user="ada", wait_seconds=SECONDS)
    assert answer.epoch is not None
    extras: dict[str, Any] = application.snapshots.get(answer.epoch).manifest["extras"]
    return answer.value, tuple(extras["cached"]["visits.seen"]["began_empty"])


def kill_driver(application: ApplicationHandle) -> None:
    (attempt,) = (
        attempt
        for execution in application.executions.list(limit=None)
        for attempt in execution.attempts
        if attempt.state == "running" and attempt.process
    )
    os.killpg(process_id(str(attempt.process)), signal.SIGKILL)
