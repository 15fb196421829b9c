"""Look-ups of a query node: during a busy driver; then per CPU second, one worker compared with a bare app that returns
the same bytes, and two workers compared with one; and batches in both formats.

Only the CPU time of the workers counts, from /proc: the load generator, the driver and other processes use cores as
well. The sides alternate in several rounds; the results are the least and the greatest ratio.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.cpu import children, cpu_seconds
from benchmarks.load import BATCH
from benchmarks.measures.lookups import KEYS, PATH, RATE
from benchmarks.result import Result, at_least, at_most, number
from benchmarks.running import has_key, head, running_control_plane, submit, wait_for
from epochal.client import Client
from epochal.testing.servers.control_plane import COMMAND, ControlPlane

ROUNDS, SECONDS, WARM_SECONDS = 3, 3, 1
CONNECTIONS, BATCH_CONNECTIONS = 32, 2
"""Connections for each worker."""
TARGET, BARE_TARGET = 0.9, 0.85
P99_MILLISECONDS = 8
KEYS_A_SECOND = {"batch": 400_000, "columns": 800_000}


def run(folder: Path) -> list[Result]:
    with running_control_plane(folder) as (plane, client):
        application = submit(client, "counts", {"keys": KEYS, "rate": RATE})
        wait_for(lambda: has_key(application, KEYS - 1), "every key")
        with query_node(plane, folder, 1) as node:
            before = head(application)
            with_driver = [Measured.of(node, plane, "point") for _ in range(ROUNDS)]
            committed = head(application) - before
        client.operations.wait(client.applications.stop("counts"))
        rates: dict[int, list[float]] = {0: [], 1: [], 2: []}
        batches: dict[str, list[Measured]] = {kind: [] for kind in KEYS_A_SECOND}
        with query_node(plane, folder, 1) as node, bare_app(node, plane) as bare, query_node(plane, folder, 2) as two:
            for _ in range(ROUNDS):
                for workers, measured in enumerate((bare, node, two)):
                    rates[workers].append(Measured.of(measured, plane, "point").per_cpu_second)
                for kind, found in batches.items():
                    found.append(Measured.of(node, plane, kind))
    of_bare = [one / bare for bare, one in zip(rates[0], rates[1], strict=True)]
    of_one = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    how = f"{KEYS:,} keys, {CONNECTIONS} connections for each worker; {{:.2f}} to {{:.2f}} in {ROUNDS} rounds"
    return [
        *_with_busy_driver(with_driver, committed),
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
        *_batches(batches),
    ]


@dataclass(frozen=True)
class Measured:
    """Results of the load generator, and CPU seconds of the workers during the load."""

    answers: Mapping[str, float]
    cpu_seconds: float

    @classmethod
    def of(cls, node: QueryNode, plane: ControlPlane, kind: str) -> Measured:
        """Run the load generator. Raises ``RuntimeError`` if a look-up fails."""
        token = (plane.home / "admin.token").read_text().strip()
        connections = (CONNECTIONS if kind == "point" else BATCH_CONNECTIONS) * len(node.workers)

        def load(seconds: int) -> dict[str, float]:
            arguments = [node.url, token, seconds, connections, kind, PATH, KEYS]
            command = [sys.executable, "-m", "benchmarks.load", *map(str, arguments)]
            return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

        load(WARM_SECONDS)
        before = node.cpu_seconds()
        answers = load(SECONDS)
        if answers["failures"]:
            raise RuntimeError(f"{answers['failures']:.0f} of {answers['requests']:.0f} look-ups failed")
        return cls(answers, node.cpu_seconds() - before)

    @property
    def per_second(self) -> float:
        return self.answers["requests"] / self.answers["seconds"]

    @property
    def per_cpu_second(self) -> float:
        return self.answers["requests"] / self.cpu_seconds


def _with_busy_driver(rounds: list[Measured], committed: int) -> list[Result]:
    p99 = sorted(measured.answers["p99"] * 1000 for measured in rounds)
    how = (
        f"{CONNECTIONS} connections, one worker; a driver that reads {RATE:,.0f} rows/s has committed {committed} "
        f"epochs in this time; {p99[0]:.1f} to {p99[-1]:.1f} ms in {ROUNDS} rounds"
    )
    return [
        number(
            "look-ups of a query node with a busy driver", median(each.per_second for each in rounds), "/s", digits=0
        ),
        at_most("look-ups of a query node with a busy driver, p99", median(p99), P99_MILLISECONDS, "ms", how, digits=1),
    ]


def _batches(kinds: Mapping[str, list[Measured]]) -> Iterator[Result]:
    for kind, rounds in kinds.items():
        rates = sorted(measured.per_second * BATCH for measured in rounds)
        cpu = median(measured.per_cpu_second * BATCH for measured in rounds)
        form = "JSON" if kind == "batch" else "Arrow"
        how = (
            f"{BATCH:,} keys a request, {BATCH_CONNECTIONS} connections, one worker; {rates[0]:,.0f} to "
            f"{rates[-1]:,.0f} in {ROUNDS} rounds; {cpu:,.0f} a CPU second"
        )
        yield at_least(
            f"batch look-ups of a query node, {form}", median(rates), KEYS_A_SECOND[kind], "keys/s", how, digits=0
        )


@contextmanager
def bare_app(node: QueryNode, plane: ControlPlane) -> Iterator[QueryNode]:
    """Start :mod:`benchmarks.bare` with an answer of the node."""
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
        """User and system time of the workers."""
        return sum(cpu_seconds(worker) for worker in self.workers)


@contextmanager
def query_node(plane: ControlPlane, folder: Path, workers: int) -> Iterator[QueryNode]:
    """Start a query node on the catalog and store of the control plane."""
    home = folder / f"query-{workers}"
    home.mkdir(exist_ok=True)
    places = {"EPOCHAL_HOME": str(home), "EPOCHAL_DATABASE_URL": f"sqlite:///{plane.home / 'catalog.sqlite'}"}
    command: list[Any] = [COMMAND, "up", "--role", "query", "--workers", workers, "--port", 0, "--json"]
    command += ["--store", plane.home / "store"]
    with subprocess.Popen(
        [str(part) for part in command], env=plane.environment | places, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        started = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        try:
            with Client(started["url"]) as client:
                wait_for(client.ready, "the query node")
            yield QueryNode(started["url"], _workers(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)


def _workers(process: int) -> list[int]:
    return [child for child in children(process) if Path(f"/proc/{child}/cmdline").read_text().endswith("query_app\0")]
