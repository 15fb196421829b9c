"""A loop under a control plane: the driver is killed with records in flight, and the result equals that of networkx."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import networkx
import pytest

from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import control_plane, process_id
from tests.kit.waiting import eventually
from tests.service.end_to_end.blocks import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 240
GRAPH = networkx.disjoint_union(networkx.path_graph(16), networkx.karate_club_graph())
"""The smallest label of the path takes fifteen hops to its other end."""


def test_components_of_a_killed_driver_equal_networkx(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    edges = "".join(json.dumps({"one": one, "other": other}) + "\n" for one, other in GRAPH.edges)
    (tmp_path / "input" / "edges.json").write_text(edges)
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:
        artifact = client.artifacts.upload(ROOT / "examples" / "loops" / "components.py").sha256
        client.applications.create(
            "components",
            artifact,
            parameters={"input": str(tmp_path / "input"), "output": str(tmp_path / "output")},
            configuration={"epoch_interval_seconds": 0.2, "restart": {"backoff_seconds": 0.1}},
        )
        application = client.application("components")
        eventually(lambda: in_flight(application, at_least=4) > 0, SECONDS)
        first = kill_driver(application)
        killed_at = application.get().head
        eventually(lambda: in_flight(application, at_least=12) == 0, SECONDS)
        head = application.get().head
        assert killed_at is not None and head is not None and head.epoch > killed_at.epoch + 1, (
            "rounds must have remained"
        )
        assert running(application) != first
        found = {row.key["vertex"]: row.value["label"] for row in application.state("components.component").scan_all()}
        assert found == {one: min(part) for part in networkx.connected_components(GRAPH) for one in part}
        plain = [json.loads(line) for file in (tmp_path / "output").glob("epoch=*/*.json") for line in file.open()]
        written: dict[int, list[int]] = {}
        for row in plain:
            written.setdefault(row["vertex"], []).append(row["label"])
        assert {vertex: min(labels) for vertex, labels in written.items()} == found
        assert all(len(set(labels)) == len(labels) for labels in written.values()), "a change was written twice"


def in_flight(application: ApplicationHandle, at_least: int) -> int:
    """Number of records in flight of the loop at the head; -1 before the epoch ``at_least``."""
    head = application.get().head
    if head is None or head.epoch < at_least:
        return -1
    held = application.epochs.get(head.epoch).in_flight
    assert held is not None
    return held["messages"]


def running(application: ApplicationHandle) -> int:
    (attempt,) = (
        attempt
        for execution in application.executions.list(limit=None)
        for attempt in execution.attempts
        if attempt.state == "running" and attempt.process
    )
    assert attempt.process is not None
    return process_id(attempt.process)


def kill_driver(application: ApplicationHandle) -> int:
    process = running(application)
    os.killpg(process, signal.SIGKILL)
    return process
