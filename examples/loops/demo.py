"""``python -m examples.loops.demo``: connected components, PageRank and k-means, each killed during a loop.

Runs every example with ``epochal run --available-now``. Its driver is killed after writing a manifest and before the
decision, while records are in flight, and restarted. Exits 0 only if the final state equals the results of networkx
and scikit-learn, and leaves no files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx
import numpy as np
from sklearn.cluster import KMeans

from epochal.faults import Fault
from epochal.snapshots.discovery import discover
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import planned, without_faults
from epochal.testing.servers.control_plane import COMMAND
from examples.loops.k_means import STANDS_STILL, Assign
from examples.loops.page_rank import DAMPING

HERE = Path(__file__).parent
KILLED_IN_EPOCH = 4
CLUB = networkx.karate_club_graph()
"""Contacts among the 34 members of a karate club: W. W. Zachary, An Information Flow Model for Conflict and Fission in
Small Groups, Journal of Anthropological Research 33 (1977)."""
SEPARATE = [(101, 102), (102, 103)]
"""A separate component of three vertices."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="epochal-example-") as folder:
        return 0 if all([components(Path(folder)), page_rank(Path(folder)), k_means(Path(folder))]) else 1


def components(folder: Path) -> bool:
    graph = networkx.Graph([*CLUB.edges, *SEPARATE])
    edges = sorted(graph.edges)
    example = Example("components", folder, [[{"one": one, "other": other} for one, other in edges]])
    found = {row["vertex"]: row["label"] for row in example.state("components.component")}
    expected = {vertex: min(part) for part in networkx.connected_components(graph) for vertex in part}
    return report("components", found == expected, f"{len(set(found.values()))} among {len(found)} members", "networkx")


def page_rank(folder: Path) -> bool:
    graph = CLUB.to_directed()
    links = [{"page": page, "link": link} for page, link in graph.edges]
    example = Example("page_rank", folder, [links[:100], links[100:]])
    found = {row["page"]: row["rank"] for row in example.state("pages.ranks")}
    expected = ranks(graph)
    worst = max(abs(found[page] - rank) for page, rank in expected.items())
    return report(
        "ranks",
        worst < 1e-4,
        f"member {max(found, key=lambda page: found[page])} has the highest, maximum error {worst:.1e}",
        "networkx",
    )


def ranks(graph: Any) -> dict[int, float]:
    """Return the rank of each page. Ranks add up to the number of pages; each page has a link."""
    shares: dict[int, float] = networkx.pagerank(graph, alpha=DAMPING, weight=None, tol=1e-12)
    return {page: share * len(graph) for page, share in shares.items()}


def k_means(folder: Path) -> bool:
    chance = np.random.default_rng(3)
    middles = np.array([(0.0, 0.0), (6.0, 1.0), (2.0, 7.0)])
    points = np.concatenate([middle + chance.normal(size=(60, 2)) for middle in middles])
    chance.shuffle(points)
    rows = [{"id": number, "x": x, "y": y} for number, (x, y) in enumerate(points.tolist())]
    example = Example("k_means", folder, [rows[:90], rows[90:]])
    found = np.array(
        [(row["x"], row["y"]) for row in sorted(example.state("move.place"), key=lambda row: row["centre"])]
    )
    expected = KMeans(len(Assign.begin), init=np.array(Assign.begin), n_init=1, tol=0).fit(points).cluster_centers_
    same = bool(np.abs(expected - found).max() < 10 * STANDS_STILL)
    return report("centres", same, f"{np.round(found, 2).tolist()}", "scikit-learn")


@dataclass
class Example:
    """Runs a pipeline of this folder over ``batches`` of rows: one file and one converging run per batch."""

    name: str
    folder: Path
    batches: Sequence[Sequence[Mapping[str, Any]]]

    def __post_init__(self) -> None:
        home = self.folder / self.name
        (home / "input").mkdir(parents=True)
        for number, rows in enumerate(self.batches):
            (home / "input" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
            if number == 0:
                self.run([Fault("E4.manifest-written", "kill", epoch=KILLED_IN_EPOCH)], expected=-9)
            self.run([], expected=0)

    def run(self, faults: list[Fault], expected: int) -> None:
        home = self.folder / self.name
        places = ["input"] if self.name == "page_rank" else ["input", "output"]
        command = ["run", f"{HERE / self.name}.py", "--available-now", f"--directory={home / 'kept'}", "--take-over"]
        command += [f"--parameter={place}={home / place}" for place in places]
        environment = without_faults(os.environ) | planned(faults)
        code = subprocess.run([COMMAND, *command, "--set=parallelism=2"], env=environment, check=False).returncode
        if code != expected:
            raise SystemExit(f"{self.name}: the run ended with {code}, not with {expected}.")

    def state(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a state table at the newest snapshot."""
        store = SnapshotStore(str(self.folder / self.name / "kept" / "store"))
        newest = max(discover(store).roots, key=lambda reference: reference.epoch)
        rows: list[dict[str, Any]] = SnapshotReader(store, newest).read(table).to_pylist()
        return rows


def report(name: str, equal: bool, result: str, library: str) -> bool:
    print(f"{name}: {result}; {'equal' if equal else 'NOT equal'} to what {library} computes")
    return equal


if __name__ == "__main__":
    sys.exit(main())
