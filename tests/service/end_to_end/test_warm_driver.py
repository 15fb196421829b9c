"""A Spark session that started before its application: it runs applications like any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epochal.testing.servers.control_plane import ControlPlane, control_plane, process_id
from tests.kit.waiting import eventually

PIPELINE = """
from epochal import Pipeline
from epochal.connectors import files, generator
from pydantic import BaseModel


class Parameters(BaseModel):
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("sensors")
    readings = pipeline.read("readings", generator.source({"sensor": "id % 3", "value": "id"}, rate=100))
    sums = readings.key_by("sensor").aggregate("sums", n="count(*)", most="max(value)")
    sums.write("out", files.sink(parameters.output, mode="updates"))
    return pipeline
"""
READY = 'epochal_warm_drivers{state="ready"}'


def metrics(plane: ControlPlane) -> dict[str, float]:
    token = (plane.home / "admin.token").read_text().strip()
    answer = httpx.get(f"{plane.url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=60)
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.mark.long
def test_killed_warm_driver_is_replaced_by_another_warm_driver(tmp_path: Path) -> None:
    (tmp_path / "sensors.py").write_text(PIPELINE)
    with control_plane(tmp_path, {"EPOCHAL_WARM_DRIVERS": "1"}) as plane, plane.client() as client:
        eventually(lambda: metrics(plane)[READY] == 1, 300)
        assert metrics(plane)["epochal_warm_drivers_bytes"] > 100 << 20
        artifact = client.artifacts.upload(tmp_path / "sensors.py")
        client.applications.create("sensors", artifact.sha256, parameters={"output": str(tmp_path / "out")})
        application = client.application("sensors")

        def committed_by(attempt: int) -> bool:
            epochs = application.epochs.list(limit=1, state="committed")
            return bool(epochs) and epochs[0].attempt == attempt

        eventually(lambda: committed_by(1), 300)
        assert metrics(plane)['epochal_drivers_started_total{start="warm"}'] == 1
        eventually(lambda: metrics(plane)[READY] == 1, 300)
        first = application.executions.list(limit=1)[0].attempts[-1]
        assert first.process is not None
        os.kill(process_id(first.process), signal.SIGKILL)
        eventually(lambda: committed_by(2), 300)
        started = metrics(plane)
        assert started['epochal_drivers_started_total{start="warm"}'] == 2
        assert started['epochal_drivers_started_total{start="cold"}'] == 0
        # The readings of each sensor are 0, 3, 6 and so on: none is missing, and none was counted twice.
        for sensor in range(3):
            row = application.state("sums").get(sensor).value
            assert row is not None
            assert row["most"] == 3 * (row["n"] - 1) + sensor
        plane.restart(kill=True)
        before = application.get().head
        assert before is not None
        eventually(lambda: (head := application.get().head) is not None and head.epoch > before.epoch, 120)
        assert committed_by(2)
