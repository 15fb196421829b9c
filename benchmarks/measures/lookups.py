"""Look-ups by key over HTTP while the application commits: one control-plane process, 32 connections."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import BATCH
from benchmarks.result import Result, at_least, at_most, number
from benchmarks.running import has_key, head, running_control_plane, submit, wait_for

KEYS, RATE = 100_000, 5_000.0
SECONDS, WARM_SECONDS = 10, 3
POINT_CONNECTIONS, BATCH_CONNECTIONS = 32, 2
PATH = "/v1/applications/counts/state/counts"


@dataclass(frozen=True)
class Answers:
    """Results of the load generator for point and batch look-ups; ``committed``: epochs during the point look-ups."""

    point: Mapping[str, float]
    batch: Mapping[str, float]
    committed: int

    @property
    def points_a_second(self) -> float:
        return self.point["requests"] / self.point["seconds"]

    @property
    def batch_keys_a_second(self) -> float:
        return self.batch["requests"] * BATCH / self.batch["seconds"]


def measured(folder: Path, seconds: int = SECONDS) -> Answers:
    """Run look-ups of each kind for ``seconds``. Raises ``RuntimeError`` if one fails."""
    with running_control_plane(folder) as (plane, client):
        application = submit(client, "counts", {"keys": KEYS, "rate": RATE})
        wait_for(lambda: has_key(application, KEYS - 1), "every key")
        token = (plane.home / "admin.token").read_text().strip()

        def load(seconds: int, connections: int, kind: str) -> dict[str, float]:
            arguments = [plane.url, token, seconds, connections, kind, PATH, KEYS]
            command = [sys.executable, "-m", "benchmarks.load", *map(str, arguments)]
            return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

        load(WARM_SECONDS, POINT_CONNECTIONS, "point")
        before = head(application)
        point = load(seconds, POINT_CONNECTIONS, "point")
        committed = head(application) - before
        batch = load(seconds, BATCH_CONNECTIONS, "batch")
    for answers in (point, batch):
        if answers["failures"]:
            raise RuntimeError(f"{answers['failures']:.0f} of {answers['requests']:.0f} look-ups failed")
    return Answers(point, batch, committed)


def run(folder: Path) -> list[Result]:
    answers = measured(folder)
    how = (
        f"{KEYS:,} keys; {RATE:,.0f} rows/s of input, {answers.committed} epochs committed during the measure; "
        "driver, control plane and load generator share the cores"
    )
    return [
        at_least("point look-ups", answers.points_a_second, 8000, "/s", how, digits=0),
        number("point look-ups, p50", answers.point["p50"] * 1000, "ms", digits=1),
        at_most(
            "point look-ups, p99", answers.point["p99"] * 1000, 8, "ms", f"{POINT_CONNECTIONS} connections", digits=1
        ),
        at_least(
            "batch look-ups",
            answers.batch_keys_a_second,
            200_000,
            "keys/s",
            f"{BATCH:,} keys a request, {BATCH_CONNECTIONS} connections",
            digits=0,
        ),
    ]
