"""A fork into another project with records in flight in its loop: a real driver continues with them after the source
application was deleted."""

from __future__ import annotations

import json
from pathlib import Path

import networkx
import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.kit.waiting import eventually
from tests.service.end_to_end.blocks import ROOT
from tests.service.end_to_end.test_loop_killed import SECONDS, in_flight

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

LENGTH = 40
GRAPH = networkx.disjoint_union(networkx.path_graph(LENGTH), networkx.karate_club_graph())
"""The smallest label of the path takes ``LENGTH`` - 1 hops to its other end."""


def test_loop_continues_in_another_project(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    edges = "".join(json.dumps({"one": one, "other": other}) + "\n" for one, other in GRAPH.edges)
    (tmp_path / "input" / "edges.json").write_text(edges)
    with control_plane(tmp_path / "plane") as plane, plane.client() as client, in_project(plane, "ads") as ads:
        client.projects.create("ads")
        artifact = client.artifacts.upload(ROOT / "examples" / "loops" / "components.py").sha256
        client.applications.create(
            "components",
            artifact,
            parameters={"input": str(tmp_path / "input"), "output": str(tmp_path / "output")},
            configuration={"epoch_interval_seconds": 0.2},
        )
        source = client.application("components")
        eventually(lambda: in_flight(source, at_least=4) > 0, SECONDS)
        client.operations.wait(client.applications.stop("components", savepoint="half"), timeout_seconds=SECONDS)
        assert in_flight(source, at_least=4) > 0, "hops must remain"

        client.applications.fork(
            "components", "copy", into="ads", savepoint="half", parameters={"output": str(tmp_path / "of-ads")}
        )
        client.applications.delete("components")
        copy = ads.application("copy")
        ads.applications.wait("copy", timeout_seconds=SECONDS)
        eventually(lambda: in_flight(copy, at_least=LENGTH) == 0, SECONDS)
        found = {row.key["vertex"]: row.value["label"] for row in copy.state("components.component").scan_all()}
        assert found == {one: min(part) for part in networkx.connected_components(GRAPH) for one in part}
        ads.operations.wait(ads.applications.stop("copy"), timeout_seconds=SECONDS)

        halves = [written(tmp_path / folder) for folder in ("output", "of-ads")]
        assert all(halves) and not halves[0] & halves[1], "a change was written twice"
        assert {one: min(label for vertex, label in halves[0] | halves[1] if vertex == one) for one in found} == found
        assert plane.run("--project", "ads", "show", "copy").stdout.count("(project default)") == 1


def in_project(plane: ControlPlane, project: str) -> Client:
    return Client(plane.url, (plane.home / "admin.token").read_text().strip(), project=project)


def written(folder: Path) -> set[tuple[int, int]]:
    """Vertices and labels, as the files sink has them."""
    rows = [json.loads(line) for file in folder.glob("epoch=*/*.json") for line in file.open()]
    return {(row["vertex"], row["label"]) for row in rows}
