"""A Prometheus of its own, from Debian's package, with ``promtool``, which checks and tests rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from epochal.testing.servers.debian import packages
from epochal.testing.servers.process import LOOPBACK, ServerProcess, free_port

PACKAGE = "prometheus"


class PrometheusServer:
    """``url`` is its own address. Rules and targets are those that it was started with."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self.process = process
        self.url = f"http://{LOOPBACK}:{port}"

    def query(self, expression: str) -> list[Any]:
        """An instant query's result: objects with ``metric`` and ``value``."""
        return list(self._get("/api/v1/query", query=expression)["result"])

    def firing(self) -> dict[str, dict[str, str]]:
        """The labels of the alerts that fire, by name."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
            return True
        return False


@contextmanager
def prometheus(
    targets: Mapping[str, Path | None], rules: str = "groups: []\n", interval_seconds: int = 1
) -> Iterator[PrometheusServer]:
    """Start one that scrapes the targets (``host:port``, with the file of the token to send) and evaluates the rules.

    Stops it and removes its data at the end. Raises ``ServerUnavailable`` where the package cannot be had.
    """
    program = packages(PACKAGE, [PACKAGE]) / "usr" / "bin" / "prometheus"
    folder = Path(tempfile.mkdtemp(prefix="epochal-prometheus-"))
    try:
        (folder / "rules.yaml").write_text(rules)
        # JSON is YAML.
        (folder / "prometheus.yaml").write_text(json.dumps(_settings(folder, targets, interval_seconds)))
        port = free_port()
        arguments = ["--web.listen-address", f"{LOOPBACK}:{port}", "--storage.tsdb.path", str(folder / "data")]
        command: list[str | Path] = [program, "--config.file", folder / "prometheus.yaml", *arguments]
        server = PrometheusServer(ServerProcess("Prometheus", command, folder / "log", directory=folder), port)
        try:
            server.process.wait_until(server.is_ready, seconds=60)
            yield server
        finally:
            server.process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def promtool(*arguments: str | Path, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``promtool``; both outputs together. Raises ``ServerUnavailable`` where the package cannot be had."""
    program = packages(PACKAGE, [PACKAGE]) / "usr" / "bin" / "promtool"
    return subprocess.run(
        [program, *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def _settings(folder: Path, targets: Mapping[str, Path | None], interval_seconds: int) -> dict[str, Any]:
    interval = f"{interval_seconds}s"
    jobs = []
    for number, (target, token) in enumerate(targets.items()):
        job: dict[str, Any] = {"job_name": f"epochal-{number}", "static_configs": [{"targets": [target]}]}
        if token is not None:
            job["authorization"] = {"credentials_file": str(token)}
        jobs.append(job)
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": jobs,
    }
