"""Look-ups per second of CPU: one worker of a query node against a bare app that answers the same bytes, and two
workers against one.

CPU is that of the workers alone, by the kernel's accounts: the load generator, the driver and whatever else runs on the
machine takes cores, but not what is counted. Each is measured in turn, several times; what is said is the least and the
greatest ratio.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.cpu import children, cpu_seconds
from benchmarks.measures.lookups import KEYS, PATH
from benchmarks.result import Result, at_least, number
from benchmarks.running import has_key, running_control_plane, submit, wait_for
from epochal.client import Client
from epochal.testing.servers.control_plane import COMMAND, ControlPlane

ROUNDS, SECONDS, WARM_SECONDS = 3, 5, 1
CONNECTIONS = 32
"""Of each worker."""
TARGET, BARE_TARGET = 0.9, 0.85


def run(folder: Path) -> list[Result]:
    with running_control_plane(folder) as (plane, client):
        application = submit(client, "counts", {"keys": KEYS, "rate": 5000.0})
        wait_for(lambda: has_key(application, KEYS - 1), "every key")
        client.operations.wait(client.applications.stop("counts"))
        rates: dict[int, list[float]] = {0: [], 1: [], 2: []}
        for _ in range(ROUNDS):
            with query_node(plane, folder, 1) as node, bare_app(node, plane) as bare:
                for workers, asked in ((0, bare), (1, node)):
                    rates[workers].append(_look_ups_per_second_of_cpu(asked, plane))
            with query_node(plane, folder, 2) as node:
                rates[2].append(_look_ups_per_second_of_cpu(node, plane))
    of_bare = [one / bare for bare, one in zip(rates[0], rates[1], strict=True)]
    of_one = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    how = f"{KEYS:,} keys, {CONNECTIONS} connections for each worker; {{:.2f}} to {{:.2f}} in {ROUNDS} rounds"
    return [
        number("look-ups per CPU second, one query worker", sum(rates[1]) / ROUNDS, "/s", digits=0),
        at_least(
            "look-ups per CPU second, one query worker against a bare app of the same bytes",
            min(of_bare),
            BARE_TARGET,
            "x",
            how.format(min(of_bare), max(of_bare)),
        ),
        at_least(
            "look-ups per CPU second, two query workers against one",
            min(of_one),
            TARGET,
            "x",
            how.format(min(of_one), max(of_one)),
        ),
    ]


@contextmanager
def bare_app(node: QueryNode, plane: ControlPlane) -> Iterator[QueryNode]:
    """:mod:`benchmarks.bare` with an answer of a node's."""
    token = (plane.home / "admin.token").read_text().strip()
    answer = httpx.get(f"{node.url}{PATH}/keys/{KEYS // 2}", headers={"Authorization": f"Bearer {token}"})
    answer.raise_for_status()
    headers = [header for header in answer.headers.items() if header[0] not in ("date", "server")]
    command = [sys.executable, "-m", "benchmarks.bare"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"headers": headers, "body": answer.text}) + "\n")
        process.stdin.flush()
        yield QueryNode(process.stdout.readline().strip(), [process.pid])
        process.stdin.close()


class QueryNode:
    def __init__(self, url: str, workers: list[int]) -> None:
        self.url = url
        self.workers = workers

    def cpu_seconds(self) -> float:
        """User and system time of the workers, since they began."""
        return sum(cpu_seconds(worker) for worker in self.workers)


@contextmanager
def query_node(plane: ControlPlane, folder: Path, workers: int) -> Iterator[QueryNode]:
    """Beside the control plane, on its catalog and store."""
    home = folder / f"query-{workers}"
    home.mkdir(exist_ok=True)
    places = {"EPOCHAL_HOME": str(home), "EPOCHAL_DATABASE_URL": f"sqlite:///{plane.home / 'catalog.sqlite'}"}
    command: list[Any] = [COMMAND, "up", "--role", "query", "--workers", workers, "--port", 0, "--json"]
    command += ["--store", plane.home / "store"]
    with subprocess.Popen(
        [str(part) for part in command], env=plane.environment | places, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        try:
            with Client(said["url"]) as client:
                wait_for(client.ready, "the query node")
            yield QueryNode(said["url"], _workers(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)


def _look_ups_per_second_of_cpu(node: QueryNode, plane: ControlPlane) -> float:
    token = (plane.home / "admin.token").read_text().strip()

    def load(seconds: int) -> dict[str, float]:
        arguments = [node.url, token, seconds, CONNECTIONS * len(node.workers), "point", PATH, KEYS]
        command = [sys.executable, "-m", "benchmarks.load", *map(str, arguments)]
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    load(WARM_SECONDS)
    before = node.cpu_seconds()
    answers = load(SECONDS)
    if answers["failures"]:
        raise RuntimeError(f"{answers['failures']:.0f} of {answers['requests']:.0f} look-ups failed")
    return answers["requests"] / (node.cpu_seconds() - before)


def _workers(process: int) -> list[int]:
    return [child for child in children(process) if Path(f"/proc/{child}/cmdline").read_text().endswith("query_app\0")]
