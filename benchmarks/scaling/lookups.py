"""Point look-ups of a query node with one and two workers, by number of connections."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.figure import Figure, Panel
from benchmarks.measures.lookups import PATH
from benchmarks.measures.query_nodes import query_node
from benchmarks.running import has_key, running_control_plane, submit, wait_for

CONNECTIONS, SMALL = (1, 4, 16, 64, 256), (1, 4)
KEYS, SECONDS = 100_000, 6
FEW_KEYS, FEW_SECONDS = 1_000, 1
WORKERS = (1, 2)


def lookups(folder: Path, quick: bool) -> Figure:
    connections, keys, seconds = (SMALL, FEW_KEYS, FEW_SECONDS) if quick else (CONNECTIONS, KEYS, SECONDS)
    rates: dict[str, list[tuple[float, float]]] = {}
    latencies: dict[str, list[tuple[float, float]]] = {}
    with running_control_plane(folder) as (plane, client):
        application = submit(client, "counts", {"keys": keys, "rate": 5000.0})
        wait_for(lambda: has_key(application, keys - 1), "every key")
        client.operations.wait(client.applications.stop("counts"))
        token = (plane.home / "admin.token").read_text().strip()
        for workers in WORKERS:
            label = f"{workers} worker{'s' * (workers > 1)}"
            with query_node(plane, folder, workers) as node:
                _load(node.url, token, 1, connections[0], keys)
                for count in connections:
                    found = _load(node.url, token, seconds, count, keys)
                    rates.setdefault(label, []).append((float(count), found["requests"] / found["seconds"]))
                    latencies.setdefault(f"{label}, p50", []).append((float(count), found["p50"] * 1e3))
                    latencies.setdefault(f"{label}, p99", []).append((float(count), found["p99"] * 1e3))
    return Figure(
        "scale-lookups",
        "Look-ups, by connections",
        "connections, each with one request at a time",
        True,
        [Panel("look-ups/s", rates), Panel("answered after, ms", latencies)],
        f"Of {keys:,} keys, over HTTP; no driver runs, and the load generator takes a core of the same machine.",
    )


def _load(url: str, token: str, seconds: int, connections: int, keys: int) -> dict[str, float]:
    """Run the load generator. Raises ``RuntimeError`` if a look-up fails."""
    arguments = [url, token, seconds, connections, "point", PATH, keys]
    command = [sys.executable, "-m", "benchmarks.load", *map(str, arguments)]
    found = dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    if found["failures"]:
        raise RuntimeError(f"{found['failures']:.0f} of {found['requests']:.0f} look-ups failed")
    return found
